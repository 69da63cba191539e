//! The values that travel: cheap to clone, plain to read.

use crate::{Address, ContentType, Due, Headers, MessageId, OnConflict, Text, Timestamp};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The budgets, in fields of their own so that no user header can reset them. They never go down, save by a replay
/// that a person asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// Every repost, deferrals and failures alike. `HandledCount` on the wire; `max_runs` bounds it.
    pub handled: u32,
    /// Failures alone; the retry policy bounds it. A patient deferral does not use up the retries.
    pub failed: u32,
}

/// What the user sent, plus its budgets. A clone copies no payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Stable over every retry and copy.
    pub id: MessageId,
    /// The stable type name, such as `payments.charge`.
    pub kind: Text,
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
    pub fn new(id: impl Into<MessageId>, kind: impl Into<Text>, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            kind: kind.into(),
            key: None,
            content_type: ContentType::JSON,
            sent_at: None,
            headers: Headers::default(),
            body: body.into(),
            attempts: Attempts::default(),
        }
    }

    /// What makes two sends under one id the same send: topic, type, key, content type and body; not headers, not
    /// due. FNV-1a, so that it is the same in every process and every version.
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
}

/// A message on its way. `due` is per message: a batch of retries has as many due times as messages.
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
        assert!(!same(&Message { key: Some(Bytes::new()), ..message.clone() }, "orders"));
        assert!(!same(&Message { body: "bodY".into(), ..message.clone() }, "orders"));
        assert!(!same(&Message { kind: "tb".into(), body: "ody".into(), ..message.clone() }, "orders"));
    }
}
