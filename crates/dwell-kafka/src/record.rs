//! What lies in a partition, and how it becomes a message.

use crate::names::position_id;
use bytes::Bytes;
use dwell_core::{Headers, Message, Text, Timestamp, wire};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use std::{
    fmt,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The topic that a record in a delay topic is for. Known to other clients.
pub(crate) const TARGET_TOPIC: &str = "x-target-topic";
/// When it is to be there, in milliseconds since the epoch. Known to other clients.
pub(crate) const PROCESS_AT: &str = "x-process-at";
/// The timestamp that it had first. Known to other clients.
pub(crate) const ORIGINAL_TIMESTAMP: &str = "x-original-timestamp";

/// The headers of a record, as they are: in order, with duplicates, with or without a value.
pub(crate) type RawHeaders = Vec<(Text, Option<Bytes>)>;

/// One record of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    /// When it was appended or made, whichever the topic keeps.
    pub(crate) timestamp: Option<Timestamp>,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: RawHeaders,
    pub(crate) body: Option<Bytes>,
    /// Its headers cannot be read.
    pub(crate) broken: bool,
}

impl Record {
    pub(crate) fn read(message: &BorrowedMessage<'_>) -> Self {
        // The library panics at a header whose name is no text: that is one bad record, and not the end of a consumer.
        let headers = catch_unwind(AssertUnwindSafe(|| {
            let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
            headers
                .map(|header| (Text::from(header.key), header.value.map(Bytes::copy_from_slice)))
                .collect::<RawHeaders>()
        }));
        Self {
            partition: message.partition(),
            offset: u64::try_from(message.offset()).unwrap_or(0),
            timestamp: message.timestamp().to_millis().map(Timestamp),
            key: message.key().map(Bytes::copy_from_slice),
            broken: headers.is_err(),
            headers: headers.unwrap_or_default(),
            body: message.payload().map(Bytes::copy_from_slice),
        }
    }

    /// How much memory it holds, about.
    pub(crate) fn size(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| 48 + name.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        128 + headers + self.key.as_ref().map_or(0, Bytes::len) + self.body.as_ref().map_or(0, Bytes::len)
    }

    /// The message in it, what could not be read of it, and when it was due.
    pub(crate) fn message(self, topic: &str) -> (Message, Option<Text>, Option<Timestamp>) {
        let mut headers: Headers =
            self.headers.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        // What came through a delay topic has both; a header of the user's own comes alone.
        let mut due = self.timestamp;
        if headers.get(ORIGINAL_TIMESTAMP).is_some() {
            headers.take(ORIGINAL_TIMESTAMP);
            let process_at = headers.take(PROCESS_AT).and_then(|value| number(&value)).map(Timestamp);
            due = process_at.or(due);
        }
        let id = || position_id(topic, self.partition, self.offset);
        let (message, mut problem) = wire::from_headers(headers, self.key, self.body.unwrap_or_default(), id);
        if self.broken {
            problem = Some("the name of one of its headers is no text".into());
        }
        (message, problem, due)
    }
}

/// A record on its way to a topic.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) topic: Text,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: RawHeaders,
    pub(crate) body: Option<Bytes>,
}

impl Outgoing {
    /// A message, for a topic at once.
    pub(crate) fn of(message: &Message, topic: Text) -> Self {
        let headers =
            wire::to_headers(message).into_iter().map(|(name, value)| (name, Some(value))).collect();
        Self { topic, key: message.key.clone(), headers, body: Some(message.body.clone()) }
    }

    pub(crate) fn native_headers(&self) -> OwnedHeaders {
        let empty = OwnedHeaders::new_with_capacity(self.headers.len());
        self.headers
            .iter()
            .fold(empty, |headers, (key, value)| headers.insert(Header { key, value: value.as_deref() }))
    }
}

/// What [`wire::to_headers`] makes of a message, in the library's own memory: most of what is sent goes this way.
pub(crate) fn native_headers(message: &Message) -> OwnedHeaders {
    let (mut buffers, attempts) = ([[0; 20]; 3], message.attempts);
    let [sent_at, handled, failed] = &mut buffers;
    let sent_at = message.sent_at.map(|at| (wire::SENT_AT, decimal(at.0, sent_at)));
    let counts = [
        (wire::HANDLED_COUNT, decimal(attempts.handled, handled)),
        (wire::FAILED_COUNT, decimal(attempts.failed, failed)),
    ];
    let texts = [
        (wire::ID, message.id.0.as_bytes()),
        (wire::TYPE, message.kind.as_bytes()),
        (wire::CONTENT_TYPE, message.content_type.as_bytes()),
    ];
    let own = texts.into_iter().chain(sent_at).chain(counts);
    let others = message.headers.iter().map(|(name, value)| (&**name, &value[..]));
    let empty = OwnedHeaders::new_with_capacity(6 + message.headers.len());
    own.chain(others).fold(empty, |all, (key, value)| all.insert(Header { key, value: Some(value) }))
}

fn decimal(number: impl fmt::Display, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = &mut buffer[..];
    // Twenty digits and signs are enough for any number here.
    let _ = write!(rest, "{number}");
    let left = rest.len();
    &buffer[..20 - left]
}

/// The first value of a header, names compared without case.
pub(crate) fn header<'a>(headers: &'a RawHeaders, name: &str) -> Option<&'a Bytes> {
    let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.and_then(|(_, value)| value.as_ref())
}

/// Removes every value of a header.
pub(crate) fn remove(headers: &mut RawHeaders, name: &str) {
    headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
}

/// Replaces every value of a header by this one.
pub(crate) fn set(headers: &mut RawHeaders, name: &'static str, value: impl ToString) {
    remove(headers, name);
    headers.push((name.into(), Some(Bytes::from(value.to_string()))));
}

/// A number in ASCII decimal.
pub(crate) fn number(value: &Bytes) -> Option<i64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_the_headers_of_a_message_say_the_same() {
        let message = Message::new("order-42", "orders.placed", "{}").with(|message| {
            message.sent_at = Some(Timestamp(i64::MIN));
            message.attempts.handled = u32::MAX;
            message.attempts.failed = 3;
            message.headers = Headers::from_iter([("tag", "one"), ("x-dwell-id", "two"), ("tag", "")]);
        });
        let native = native_headers(&message);
        let native = native
            .iter()
            .map(|header| (Text::from(header.key), Bytes::copy_from_slice(header.value.unwrap())));
        assert_eq!(native.collect::<Headers>(), wire::to_headers(&message));
    }
}
