//! A stored message with its metadata.

use dwell_core::{Message, Outcome, Text, Timestamp};

/// A stored message: for one subscription, or as a pending publish. It is small, because it is
/// copied at every step from the wheel to a queue to a consumer and back.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) message: Message,
    /// Identifies this record permanently, also after moves. Cursors of the ledger contain it.
    pub(super) serial: u64,
    /// Position among the messages of its queue. An ordered queue uses it to put messages back in
    /// place.
    pub(super) order: u64,
    /// Due time.
    pub(super) due: Timestamp,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// Number of deliveries since the message was stored in this place, without released ones.
    pub(super) deliveries: u32,
    /// Whether the message has a key, and has to be delivered in order. Stored here, because
    /// reading the message of another core takes long and happens under the lock.
    pub(super) is_keyed: bool,
    /// A clone of the message for its first delivery. The sender makes it for the same reason.
    pub(super) spare: Option<Message>,
    /// Result of the last run. Boxed, because most messages run once and never have one.
    pub(super) last_run: Option<Box<LastRun>>,
}

#[derive(Clone)]
pub(super) struct LastRun {
    pub(super) outcome: Outcome,
    pub(super) error: Option<Text>,
    pub(super) worker: Text,
    /// Time of the delivery for this run.
    pub(super) started: Timestamp,
}

/// Creates an item for a new message.
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
