//! What lies in a partition, and how it becomes a message.

use bytes::Bytes;
use dwell_core::{Headers, Message, MessageId, Text, Timestamp, wire};

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

    /// The message in it, and what could not be read of it. `position` is where it lies: topic, partition and offset.
    pub(super) fn message(&self, position: (&str, usize, u64)) -> (Message, Option<Text>) {
        let id = || position_id(position);
        wire::from_headers(self.headers.clone(), self.key.clone(), self.body.clone(), id)
    }
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
