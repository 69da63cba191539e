//! What lies in a partition, and how it becomes a message.

use bytes::Bytes;
use dwell_core::{Address, Error, Headers, Message, MessageId, Result, Subscription, Timestamp, wire};

/// One record of a partition.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// When it was appended, where that is known.
    pub(super) at: Option<Timestamp>,
    pub(super) key: Option<Bytes>,
    pub(super) headers: Headers,
    pub(super) body: Bytes,
}

impl Record {
    pub(super) fn of(message: &Message, at: Timestamp) -> Self {
        Self {
            at: Some(at),
            key: message.key.clone(),
            headers: wire::to_headers(message),
            body: message.body.clone(),
        }
    }

    /// The message in it. `position` is where it lies: topic, partition and offset.
    pub(super) fn message(&self, position: (&str, usize, u64)) -> Result<Message> {
        let id = || position_id(position);
        wire::from_headers(self.headers.clone(), self.key.clone(), self.body.clone(), id)
    }

    /// What lies in a rejection channel in place of a record that could not be read: body, key and all readable headers
    /// as they were, under the same id, with the stamps.
    pub(super) fn rejected(
        &self,
        position: (&str, usize, u64),
        of: &Subscription,
        why: &Error,
        now: Timestamp,
    ) -> Self {
        let mut headers = self.headers.clone();
        for name in [wire::HANDLED_COUNT, wire::FAILED_COUNT, wire::SENT_AT] {
            let Some(value) = headers.take(name) else { continue };
            let alone = Headers::from_iter([(name, value.clone())]);
            let readable = wire::from_headers(alone, None, Bytes::new(), || "".into()).is_ok();
            headers.append(if readable { name.into() } else { format!("x-dwell-unreadable-{name}") }, value);
        }
        if headers.get(wire::ID).is_none_or(Bytes::is_empty) {
            headers.set(wire::ID, position_id(position).to_string());
        }
        let kind = headers.get(wire::TYPE).cloned().unwrap_or_default();
        headers.set(wire::ORIGINAL_TOPIC, of.topic.to_string());
        headers.set(wire::ORIGINAL_TYPE, kind);
        headers.set(wire::SUBSCRIPTION, of.name.to_string());
        headers.set(wire::REJECTION_REASON, "unacceptable");
        headers.set(wire::REJECTION_MESSAGE, why.to_string());
        headers.set(wire::REJECTED_AT, now.to_rfc3339());
        Self { at: Some(now), key: self.key.clone(), headers, body: self.body.clone() }
    }
}

/// Where a record that cannot be read goes: the invalid channel, else the dead letters. In a dead-letter channel, which
/// has none itself, it goes to its own reader again, readable by then. `None`: a setting says to discard.
pub(super) fn rejection_channel(of: &Subscription) -> Option<Address> {
    let channel = of.invalid.clone().or_else(|| of.dead_letter.clone());
    channel.or_else(|| wire::is_dead_letter_topic(&of.topic).then(|| of.address()))
}

/// Names a foreign message after its position, in the alphabet and length of ids: `[A-Za-z0-9_:-]{1,128}`.
fn position_id((topic, partition, offset): (&str, usize, u64)) -> MessageId {
    const LONGEST: usize = 64;
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let name: String = topic.chars().take(LONGEST).map(allowed).collect();
    let rest = if topic.chars().count() > LONGEST {
        format!("-{:016x}", hash(topic.as_bytes()))
    } else {
        String::new()
    };
    format!("{name}{rest}:{partition}:{offset}").into()
}

/// FNV-1a: a key goes to the same partition in every process.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
