//! One message in our custody, and what we know about it beyond what it says itself.

use dwell_core::{Message, Outcome, Text, Timestamp};

/// One message in our custody: for one subscription, or as a publish that waits. Small, because it is copied at every
/// step from the wheel to a queue to a consumer and back.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) message: Message,
    /// Names this record for its whole life, over every move: what a page of the ledger ends at.
    pub(super) serial: u64,
    /// Its place among the messages of its queue: an ordered queue puts back what it took out by this.
    pub(super) order: u64,
    /// When it is, or was, due.
    pub(super) due: Timestamp,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// How often it was handed out since it was put where it is, releases taken back.
    pub(super) deliveries: u32,
    /// Whether it has a key, and waits for its turn among others of that key. Said here, because a look into the message
    /// of another core takes long, and all wait for whoever hands out.
    pub(super) is_keyed: bool,
    /// The message once more, for the first one that it is handed to: made by its sender, for the same reason.
    pub(super) spare: Option<Message>,
    /// How its last run ended. Boxed, because most messages run once and never have one.
    pub(super) last_run: Option<Box<LastRun>>,
}

#[derive(Clone)]
pub(super) struct LastRun {
    pub(super) outcome: Outcome,
    pub(super) error: Option<Text>,
    pub(super) worker: Text,
    /// When it was handed out for it.
    pub(super) started: Timestamp,
}

/// A message that comes to be now.
pub(super) fn new_item(message: Message, serial: u64, due: Timestamp, now: Timestamp) -> Item {
    Item {
        is_keyed: message.key.is_some(),
        message,
        serial,
        order: 0,
        due,
        created_at: now,
        updated_at: now,
        deliveries: 0,
        spare: None,
        last_run: None,
    }
}
