//! The scripts: every step that touches more than one key is one of these.

use redis::Script as Hashed;
use std::sync::LazyLock;

/// A script, known to the server by its hash.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
    /// Whether it may be run again where nobody knows whether it has run.
    pub(crate) is_repeatable: bool,
}

impl Script {
    /// `flags` say when the server may run it at all: with a first line like this, it refuses the whole script, and never
    /// stops in the middle of one.
    fn new(flags: &str, is_repeatable: bool, parts: &[&str]) -> Self {
        let first = if flags.is_empty() { "#!lua".to_owned() } else { format!("#!lua flags={flags}") };
        let text = format!("{first}\n{}", parts.concat());
        let hash = Hashed::new(&text).get_hash().to_owned();
        Self { text, hash, is_repeatable }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $flags:literal, $is_repeatable:literal, $file:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new($flags, $is_repeatable, &[include_str!("scripts/prelude.lua"), include_str!($file)])
            });
        )*
    };
}

// What takes in something new is refused by a server without memory. What brings that state to an end is not.
// What would send twice, or answer another thing the second time, is not repeated.
scripts! {
    ACCEPT = "", false, "scripts/accept.lua";
    CLAIM = "allow-oom", true, "scripts/claim.lua";
    SETTLE = "allow-oom", false, "scripts/settle.lua";
    EXTEND = "allow-oom", true, "scripts/extend.lua";
    GIVE_BACK = "allow-oom", true, "scripts/give_back.lua";
    PROMOTE = "allow-oom", true, "scripts/promote.lua";
    CHANGE_WAITING = "allow-oom", false, "scripts/change_waiting.lua";
    CHANGE = "allow-oom", false, "scripts/change.lua";
    TIDY = "allow-oom", true, "scripts/tidy.lua";
    DUE = "no-writes", true, "scripts/due.lua";
    ARRIVE = "allow-oom", true, "scripts/arrive.lua";
    DEPART = "allow-oom", true, "scripts/depart.lua";
    PENDING = "no-writes", true, "scripts/pending.lua";
    NAMED = "no-writes", true, "scripts/named.lua";
    RECORDS = "no-writes", true, "scripts/records.lua";
}

/// Works on no topic that is there, so it has no prelude.
pub(crate) static DECLARE: LazyLock<Script> =
    LazyLock::new(|| Script::new("", true, &[include_str!("scripts/declare.lua")]));

pub(crate) static INBOX_CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new("", true, &[include_str!("scripts/inbox_claim.lua")]));

pub(crate) static INBOX_ABANDON: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", true, &[include_str!("scripts/inbox_abandon.lua")]));
