//! The values that travel: cheap to clone, plain to read.

use crate::{Address, ContentType, Due, Headers, MessageId, OnConflict, Timestamp, TypeName, wire};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// The budgets, in fields of their own so that no user header can reset them. They never go down, save by a replay
/// that a person asked for.
///
/// ```
/// use dwell_core::{Attempts, Message};
///
/// let message = Message::new("order-42", "orders.placed", "{}")
///     .with(|message| message.attempts = Attempts { handled: 3, failed: 1 });
/// assert_eq!(message.attempts.handled - message.attempts.failed, 2, "it was deferred twice");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Every repost, deferrals and failures alike. `HandledCount` on the wire; `max_runs` bounds it.
    pub handled: u32,
    /// Failures alone; the retry policy bounds it. A patient deferral does not use up the retries.
    pub failed: u32,
}

/// What the user sent, plus its budgets. It is one word: a clone copies nothing, and neither does handing it on. Its
/// fields are those of [`MessageFields`]; changing them in one clone changes no other.
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
    /// Stable over every retry and copy.
    pub id: MessageId,
    /// The stable type name, such as `payments.charge`.
    pub kind: TypeName,
    /// Business key, and the key that order is kept by.
    pub key: Option<Bytes>,
    /// What `body` is, such as `application/json`.
    pub content_type: ContentType,
    /// When it was first sent, on the sender's clock; unknown for some foreign messages.
    pub sent_at: Option<Timestamp>,
    /// The user's headers.
    pub headers: Headers,
    /// The payload.
    pub body: Bytes,
    /// The budgets.
    pub attempts: Attempts,
}

impl Message {
    /// A message of JSON that was never handled.
    ///
    /// ```
    /// use dwell_core::{ContentType, Message};
    ///
    /// let message = Message::new("order-42", "orders.placed", r#"{"order":42}"#);
    /// assert_eq!((&*message.kind, &message.content_type), ("orders.placed", &ContentType::JSON));
    /// ```
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

    /// The same with other fields.
    ///
    /// ```
    /// use dwell_core::Message;
    ///
    /// let message = Message::new("order-42", "orders.placed", "{}").with(|message| message.key = Some("42".into()));
    /// assert_eq!(message.key.as_deref(), Some(&b"42"[..]));
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut MessageFields)) -> Self {
        change(&mut self);
        self
    }

    /// What makes two sends under one id the same send: topic, type, key, content type and body; not headers, not
    /// due. FNV-1a, so that it is the same in every process and every version.
    ///
    /// ```
    /// use dwell_core::Message;
    ///
    /// let first = Message::new("a", "orders.placed", "{}");
    /// let again = first.clone().with(|message| message.headers.append("traceparent", "00-…"));
    /// let other = Message::new("a", "orders.placed", "[]");
    /// assert_eq!(first.content_hash("orders"), again.content_hash("orders"));
    /// assert_ne!(first.content_hash("orders"), other.content_hash("orders"));
    /// ```
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

    /// A dead message as it starts anew, with another body or its own: without stamps and counts.
    ///
    /// ```
    /// use dwell_core::{Attempts, Message};
    ///
    /// let dead = Message::new("a", "orders.placed", "{").with(|dead| dead.attempts = Attempts { handled: 6, failed: 6 });
    /// let mended = dead.anew(Some("{}".into()));
    /// assert_eq!((mended.attempts, &mended.body[..]), (Attempts::default(), &b"{}"[..]));
    /// ```
    #[must_use]
    pub fn anew(mut self, body: Option<Bytes>) -> Self {
        wire::strip_for_replay(&mut self.headers);
        self.attempts = Attempts::default();
        if let Some(body) = body {
            self.body = body;
        }
        self
    }

    /// Its fields; copied if others have this message, too.
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

/// A message on its way. `due` is per message: a batch of retries has as many due times as messages.
///
/// ```
/// use dwell_core::{Address, Due, Envelope, Message, OnConflict};
/// use std::time::Duration;
///
/// let message = Message::new("reminder-42", "orders.unpaid", r#"{"order":42}"#);
/// let envelope = Envelope::new(Address::topic("orders"), message)
///     .due(Due::After(Duration::from_secs(900)))
///     .once(OnConflict::Fail);
/// assert!(!envelope.copy, "it is a user's send");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Where it goes.
    pub to: Address,
    /// When it may be handled.
    pub due: Due,
    /// `Some` only for a user's send under an id of the user's own: the id is then the idempotency key. `None` for
    /// moves, copies, forwards, replays and generated ids: these are never deduplicated.
    pub once: Option<OnConflict>,
    /// It was confirmed before, and is only on its way: a move, a copy, a forward, a replay. A bound on what users may
    /// send does not apply to it.
    pub copy: bool,
    /// What it carries.
    pub message: Message,
}

impl Envelope {
    /// Due at once, never deduplicated.
    pub fn new(to: Address, message: Message) -> Self {
        Self { to, due: Due::NOW, once: None, copy: false, message }
    }

    /// Of a message that was confirmed before and is only on its way.
    pub fn copy(to: Address, message: Message) -> Self {
        Self { copy: true, ..Self::new(to, message) }
    }

    /// The same, due then.
    #[must_use]
    pub fn due(mut self, due: Due) -> Self {
        self.due = due;
        self
    }

    /// The same, with its id as the idempotency key.
    #[must_use]
    pub fn once(mut self, on_conflict: OnConflict) -> Self {
        self.once = Some(on_conflict);
        self
    }
}

/// The answer to one send: it is confirmed, as durably as the transport declares.
///
/// ```
/// use dwell_core::Sent;
///
/// let at_once = Sent::default();
/// assert_eq!(at_once, Sent { due: None, duplicate: false });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// When it is due, on the clock of whoever holds it; `None` if it went at once.
    pub due: Option<Timestamp>,
    /// The id was sent before with the same content; nothing was sent again, and `due` is the first one's.
    pub duplicate: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_topic_type_key_content_type_and_body_but_not_headers_or_counts() {
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
