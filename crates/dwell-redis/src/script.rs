//! The scripts: every step that touches more than one key is one of these.

use redis::Script as Hashed;
use std::sync::LazyLock;

/// A script, known to the server by its hash.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

impl Script {
    /// `flags` say when the server may run it at all: with a first line like this, it refuses the whole script, and never
    /// stops in the middle of one.
    fn new(flags: &str, parts: &[&str]) -> Self {
        let first = if flags.is_empty() { "#!lua".to_owned() } else { format!("#!lua flags={flags}") };
        let text = format!("{first}\n{}", parts.concat());
        let hash = Hashed::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $flags:literal, $file:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new($flags, &[include_str!("scripts/prelude.lua"), include_str!($file)])
            });
        )*
    };
}

// What takes in something new is refused by a server without memory. What brings that state to an end is not.
scripts! {
    ACCEPT = "", "scripts/accept.lua";
    CLAIM = "allow-oom", "scripts/claim.lua";
    SETTLE = "allow-oom", "scripts/settle.lua";
    EXTEND = "allow-oom", "scripts/extend.lua";
    GIVE_BACK = "allow-oom", "scripts/give_back.lua";
    PROMOTE = "allow-oom", "scripts/promote.lua";
    CHANGE_WAITING = "allow-oom", "scripts/change_waiting.lua";
    CHANGE = "allow-oom", "scripts/change.lua";
    TIDY = "allow-oom", "scripts/tidy.lua";
    PENDING = "no-writes", "scripts/pending.lua";
    NAMED = "no-writes", "scripts/named.lua";
    RECORDS = "no-writes", "scripts/records.lua";
}

/// Works on no topic that is there, so it has no prelude.
pub(crate) static DECLARE: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/declare.lua")]));

pub(crate) static INBOX_CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("scripts/inbox_claim.lua")]));

pub(crate) static INBOX_ABANDON: LazyLock<Script> =
    LazyLock::new(|| Script::new("allow-oom", &[include_str!("scripts/inbox_abandon.lua")]));
