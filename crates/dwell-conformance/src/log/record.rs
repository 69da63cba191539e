//! A record of a partition, and its conversion to a message.

use bytes::Bytes;
use dwell_core::{Headers, Message, MessageId, Text, Timestamp, wire};

/// A record of a partition.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Time of the append, if known.
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

    /// Returns the message, and the parts that are unreadable. `position` is topic, partition and
    /// offset.
    pub(super) fn message(&self, position: (&str, usize, u64)) -> (Message, Option<Text>) {
        let id = || position_id(position);
        wire::from_headers(self.headers.clone(), self.key.clone(), self.body.clone(), id)
    }
}

/// Returns an id for a foreign message from its position, in the format of ids:
/// `[A-Za-z0-9_:-]{1,128}`.
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

/// Returns the FNV-1a hash, so that a key goes to the same partition in every process.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
