//! Messages and envelopes.

use crate::{Address, ContentType, Due, Headers, MessageId, OnConflict, Timestamp, TypeName, wire};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// Number of runs and failures of a message. They are separate fields, so that no user header can
/// reset them. They never decrease, except when a person replays the message.
///
/// ```
/// use dwell_core::{Attempts, Message};
///
/// let message = Message::new("order-42", "orders.placed", "{}")
///     .with(|message| message.attempts = Attempts { handled: 3, failed: 1 });
/// assert_eq!(message.attempts.handled - message.attempts.failed, 2, "deferred twice");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Runs that ended in a deferral or a failure. `HandledCount` on the wire; limited by
    /// `max_runs`.
    pub handled: u32,
    /// Runs that ended in a failure. Limited by the retry policy. A deferral uses up no retry.
    pub failed: u32,
}

/// A message and its counts. It has the size of a pointer, and a clone copies no content. The
/// fields are those of [`MessageFields`]. Changing the fields of one clone does not change the
/// others.
///
/// ```
/// use dwell_core::Message;
///
/// let first = Message::new("order-42", "orders.placed", "{}");
/// let mut second = first.clone();
/// second.attempts.failed = 1;
/// assert_eq!((first.attempts.failed, second.attempts.failed), (0, 1));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Message(Arc<MessageFields>);

/// The fields of a [`Message`].
///
/// ```
/// use dwell_core::{Message, MessageFields};
///
/// let message = Message::from(MessageFields {
///     key: Some("order-42".into()),
///     ..Message::new("a", "orders.placed", r#"{"order":42}"#).into_fields()
/// });
/// assert_eq!(message.key.as_deref(), Some(&b"order-42"[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFields {
    /// Message id, the same for every retry and copy.
    pub id: MessageId,
    /// Message type: a stable name such as `payments.charge`.
    pub kind: TypeName,
    /// Business key. Messages with the same key are kept in order.
    pub key: Option<Bytes>,
    /// Content type of `body`, such as `application/json`.
    pub content_type: ContentType,
    /// Time of the first send, on the sender's clock. Unknown for some messages of other programs.
    pub sent_at: Option<Timestamp>,
    /// Headers of the user.
    pub headers: Headers,
    /// Payload.
    pub body: Bytes,
    /// Number of runs and failures.
    pub attempts: Attempts,
}

impl Message {
    /// Creates a message with a JSON body that was never run.
    pub fn new(id: impl Into<MessageId>, kind: impl Into<TypeName>, body: impl Into<Bytes>) -> Self {
        Self::from(MessageFields {
            id: id.into(),
            kind: kind.into(),
            key: None,
            content_type: ContentType::JSON,
            sent_at: None,
            headers: Headers::default(),
            body: body.into(),
            attempts: Attempts::default(),
        })
    }

    /// Returns the message with its fields changed.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut MessageFields)) -> Self {
        change(&mut self);
        self
    }

    /// Returns a hash of the content that makes two sends under one id equal: topic, type, key,
    /// content type and body, but neither headers nor due time. The algorithm is FNV-1a, so the
    /// hash is the same in every process and every version.
    pub fn content_hash(&self, topic: &str) -> u128 {
        let key = self.key.as_deref();
        let parts = [
            topic.as_bytes(),
            self.kind.as_bytes(),
            self.content_type.as_bytes(),
            key.unwrap_or_default(),
            &self.body,
        ];
        let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let mut mix = |byte: u8| {
            hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        };
        mix(u8::from(key.is_some()));
        for part in parts {
            (part.len() as u64).to_le_bytes().into_iter().for_each(&mut mix);
            part.iter().copied().for_each(&mut mix);
        }
        hash
    }

    /// Returns a dead letter as a new message, with another body if given: without rejection
    /// headers and counts.
    #[must_use]
    pub fn anew(mut self, body: Option<Bytes>) -> Self {
        wire::strip_for_replay(&mut self.headers);
        self.attempts = Attempts::default();
        if let Some(body) = body {
            self.body = body;
        }
        self
    }

    /// Returns the fields. They are copied if the message has other clones.
    pub fn into_fields(self) -> MessageFields {
        Arc::unwrap_or_clone(self.0)
    }
}

impl From<MessageFields> for Message {
    fn from(fields: MessageFields) -> Self {
        Self(Arc::new(fields))
    }
}

impl Deref for Message {
    type Target = MessageFields;

    fn deref(&self) -> &MessageFields {
        &self.0
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut MessageFields {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A message with its destination and due time. A batch may contain a different due time for each
/// message.
///
/// ```
/// use dwell_core::{Address, Due, Envelope, Message, OnConflict};
/// use std::time::Duration;
///
/// let message = Message::new("reminder-42", "orders.unpaid", r#"{"order":42}"#);
/// let envelope = Envelope::new(Address::topic("orders"), message)
///     .due(Due::After(Duration::from_secs(900)))
///     .once(OnConflict::Fail);
/// assert!(!envelope.copy, "a user's send");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Destination.
    pub to: Address,
    /// When the message may be handled.
    pub due: Due,
    /// `Some` if a user chose the id of the message: the id is then the idempotency key. `None` for
    /// moves, copies, forwards, replays and generated ids, which are never deduplicated.
    pub once: Option<OnConflict>,
    /// Whether the message was confirmed before: a move, a copy, a forward or a replay. Limits for
    /// users' sends do not apply to it.
    pub copy: bool,
    /// The message.
    pub message: Message,
}

impl Envelope {
    /// Creates an envelope that is due immediately and is not deduplicated.
    pub fn new(to: Address, message: Message) -> Self {
        Self { to, due: Due::NOW, once: None, copy: false, message }
    }

    /// Creates an envelope for a message that was confirmed before.
    pub fn copy(to: Address, message: Message) -> Self {
        Self { copy: true, ..Self::new(to, message) }
    }

    /// Sets the due time.
    #[must_use]
    pub fn due(mut self, due: Due) -> Self {
        self.due = due;
        self
    }

    /// Makes the message id the idempotency key.
    #[must_use]
    pub fn once(mut self, on_conflict: OnConflict) -> Self {
        self.once = Some(on_conflict);
        self
    }
}

/// Result of a send that the broker has confirmed, with the durability that the transport declares.
///
/// ```
/// use dwell_core::Sent;
///
/// let at_once = Sent::default();
/// assert_eq!(at_once, Sent { due: None, duplicate: false });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Due time on the clock of the store. `None` if the message was due immediately.
    pub due: Option<Timestamp>,
    /// Whether the id was known with the same content. Nothing was sent, and `due` is that of the
    /// first send.
    pub duplicate: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_hash_excludes_id_headers_and_counts() {
        let message = Message::new("a", "t", "body");
        let same = |other: &Message, topic: &str| message.content_hash("orders") == other.content_hash(topic);
        let mut other = message.clone();
        other.headers.append("x", "y");
        other.attempts.handled = 3;
        other.id = "b".into();
        assert!(same(&other, "orders"));
        assert!(!same(&other, "invoices"));
        assert!(!same(&message.clone().with(|other| other.key = Some(Bytes::new())), "orders"));
        assert!(!same(&message.clone().with(|other| other.body = "bodY".into()), "orders"));
        let shifted = message.clone().with(|other| (other.kind, other.body) = ("tb".into(), "ody".into()));
        assert!(!same(&shifted, "orders"));
    }
}
