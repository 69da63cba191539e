//! The scripts. Every step that affects more than one key is a script.

use redis::Script as Hashed;
use std::sync::LazyLock;

/// A script, known to the server by its hash.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
    /// Whether running it twice differs from running it once. The server remembers the last calls
    /// of such scripts, and does not repeat them.
    pub(crate) is_remembered: bool,
}

impl Script {
    /// `flags` decide when the server may run the script. With this first line the server refuses
    /// the whole script, and never stops in the middle of one.
    fn new(flags: &str, is_remembered: bool, parts: &[&str]) -> Self {
        let first = if flags.is_empty() { "#!lua".to_owned() } else { format!("#!lua flags={flags}") };
        let text = format!("{first}\n{}", parts.concat());
        let hash = Hashed::new(&text).get_hash().to_owned();
        Self { text, hash, is_remembered }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $flags:literal, $is_remembered:literal, $file:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new($flags, $is_remembered, &[include_str!("scripts/prelude.lua"), include_str!($file)])
            });
        )*
    };
}

// A server without memory refuses scripts that store new messages, but not scripts that free
// memory.
// Scripts that would send twice, or return something else the second time, are remembered. All
// others have no effect the second time.
scripts! {
    ACCEPT = "", true, "scripts/accept.lua";
    SEND = "", false, "scripts/send.lua";
    CLAIM = "allow-oom", true, "scripts/claim.lua";
    SETTLE = "allow-oom", true, "scripts/settle.lua";
    EXTEND = "allow-oom", false, "scripts/extend.lua";
    GIVE_BACK = "allow-oom", false, "scripts/give_back.lua";
    PROMOTE = "allow-oom", false, "scripts/promote.lua";
    CHANGE_WAITING = "allow-oom", true, "scripts/change_waiting.lua";
    CHANGE = "allow-oom", true, "scripts/change.lua";
    TIDY = "allow-oom", false, "scripts/tidy.lua";
    DUE = "no-writes", false, "scripts/due.lua";
    ARRIVE = "allow-oom", false, "scripts/arrive.lua";
    DEPART = "allow-oom", false, "scripts/depart.lua";
    CLOSE = "allow-oom", false, "scripts/close.lua";
    PENDING = "no-writes", false, "scripts/pending.lua";
    NAMED = "no-writes", false, "scripts/named.lua";
    RECORDS = "no-writes", false, "scripts/records.lua";
}

/// It does not work on an existing topic, so it has no prelude.
pub(crate) static DECLARE: LazyLock<Script> =
    LazyLock::new(|| Script::new("", false, &[include_str!("scripts/declare.lua")]));

/// Pending messages must be promoted even if the memory is full.
pub(crate) static REGISTER: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", false, &[include_str!("scripts/register.lua")]));

pub(crate) static BUCKETS: LazyLock<Script> =
    LazyLock::new(|| Script::new("no-writes", false, &[include_str!("scripts/buckets.lua")]));

pub(crate) static MARK: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", false, &[include_str!("scripts/mark.lua")]));

/// Without a claim, consumers could not handle the messages that use the memory.
pub(crate) static INBOX_CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", false, &[include_str!("scripts/inbox_claim.lua")]));

pub(crate) static INBOX_DONE: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", false, &[include_str!("scripts/inbox_done.lua")]));

pub(crate) static INBOX_ABANDON: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", false, &[include_str!("scripts/inbox_abandon.lua")]));
