//! Records of a partition, and their conversion to messages.

use crate::{headers::RawHeaders, names::position_id};
use bytes::Bytes;
use dwell_core::{Attempts, Headers, Message, MessageFields, Text, Timestamp, wire};
use rdkafka::message::{
    BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders, Timestamp as Stamp,
};
use std::{
    cell::Cell,
    fmt,
    io::Write as _,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::Once,
};

/// Header with the target of a record in a delay topic. Other clients use it.
pub(crate) const TARGET_TOPIC: &str = "x-target-topic";
/// Header with the time at which the record is due, in milliseconds since the epoch. Other clients
/// use it.
pub(crate) const PROCESS_AT: &str = "x-process-at";
/// Header with the original timestamp of the record. Other clients use it.
pub(crate) const ORIGINAL_TIMESTAMP: &str = "x-original-timestamp";

/// Approximate memory of a record that is held, beside its bytes.
const OWN_SIZE: usize = 384;

/// One record of a partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) partition: i32,
    pub(crate) offset: u64,
    /// When it was appended or created, as the topic is configured.
    pub(crate) timestamp: Option<Timestamp>,
    /// Whether the timestamp is the time of the append, by the broker's clock.
    pub(crate) has_append_time: bool,
    /// The message, where the record was read as one. The fields below are then empty.
    pub(crate) message: Option<Message>,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: RawHeaders,
    pub(crate) body: Option<Bytes>,
    /// Some of its headers cannot be read, and are missing.
    pub(crate) broken: bool,
}

/// Function that reads a record: [`Record::read`] or [`Record::read_message`].
pub(crate) type Read = fn(&BorrowedMessage<'_>) -> Record;

impl Record {
    /// Reads a record as it is.
    pub(crate) fn read(from: &BorrowedMessage<'_>) -> Self {
        Self::read_but(from, Cell::default())
    }

    /// Reads a record without the header that is known to be unreadable.
    fn read_but(from: &BorrowedMessage<'_>, broken: Cell<Option<usize>>) -> Self {
        let headers = headers(from, &broken).flatten().collect();
        Self { broken: broken.get().is_some(), headers, ..Self::without_headers(from) }
    }

    /// Reads a record as a message, without the copy that reading and converting would take. A
    /// record that was not written by Dwell is read as it is.
    pub(crate) fn read_message(from: &BorrowedMessage<'_>) -> Self {
        let broken = Cell::default();
        let fields = plain(headers(from, &broken).map_while(|header| header));
        let Some(fields) = fields.filter(|_| broken.get().is_none()) else {
            return Self::read_but(from, broken);
        };
        let Self { partition, offset, timestamp, key, body, .. } = Self::without_headers(from);
        let message = Message::from(MessageFields { key, body: body.unwrap_or_default(), ..fields });
        Self { partition, offset, timestamp, message: Some(message), ..Self::default() }
    }

    fn without_headers(from: &BorrowedMessage<'_>) -> Self {
        Self {
            partition: from.partition(),
            offset: u64::try_from(from.offset()).unwrap_or(0),
            timestamp: from.timestamp().to_millis().map(Timestamp),
            has_append_time: matches!(from.timestamp(), Stamp::LogAppendTime(_)),
            key: from.key().map(Bytes::copy_from_slice),
            body: from.payload().map(Bytes::copy_from_slice),
            ..Self::default()
        }
    }

    /// Returns the approximate memory of the record.
    pub(crate) fn size(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let message = self.message.as_ref().map_or(0, |message| length(&message.key) + message.body.len());
        OWN_SIZE + message + self.headers.size() + length(&self.key) + length(&self.body)
    }

    /// Returns the message, the problem if it could not be read in full, and its due time.
    pub(crate) fn message(self, topic: &str) -> (Message, Option<Text>, Option<Timestamp>) {
        if let Some(message) = self.message {
            return (message, None, self.timestamp);
        }
        let mut headers: Headers =
            self.headers.values().map(|(name, value)| (name, value.unwrap_or_default())).collect();
        // A record that came through a delay topic has both headers; a user's own header comes
        // alone.
        let mut due = self.timestamp;
        if headers.get(ORIGINAL_TIMESTAMP).is_some() {
            headers.take(ORIGINAL_TIMESTAMP);
            let process_at = headers.take(PROCESS_AT).and_then(|value| number(&value)).map(Timestamp);
            due = process_at.or(due);
        }
        let id = || position_id(topic, self.partition, self.offset);
        let (message, mut problem) = wire::from_headers(headers, self.key, self.body.unwrap_or_default(), id);
        if self.broken {
            problem = Some("the name of one of its headers is not valid UTF-8".into());
        }
        (message, problem, due)
    }
}

/// A record to send to a topic.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) topic: Text,
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: RawHeaders,
    pub(crate) body: Option<Bytes>,
}

impl AsRef<Self> for Outgoing {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Outgoing {
    /// Converts a message that goes to a topic directly.
    pub(crate) fn of(message: &Message, topic: Text) -> Self {
        let headers = wire::to_headers(message);
        let headers = headers.iter().map(|(name, value)| (&**name, Some(&value[..]))).collect();
        Self { topic, key: message.key.clone(), headers, body: Some(message.body.clone()) }
    }
}

/// Writes the headers of [`wire::to_headers`] to librdkafka's memory. Most messages are sent this
/// way.
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

/// Name and value of a header.
type Named<'a> = (&'a str, Option<&'a [u8]>);

/// Returns all headers in order. An item is `None` if the name of the header is not valid UTF-8:
/// its index is noted in `broken`, and it is not read again.
fn headers<'a>(
    of: &'a BorrowedMessage<'_>,
    broken: &'a Cell<Option<usize>>,
) -> impl Iterator<Item = Option<Named<'a>>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(hide_expected_panics);
    let all = of.headers().into_iter().flat_map(|all| (0..all.count()).map(move |index| (all, index)));
    all.map(|(all, index)| {
        if broken.get() == Some(index) {
            return None;
        }
        // librdkafka's wrapper panics on such a name and has no other way to read it. One bad
        // header must not end a consumer.
        PANIC_IS_EXPECTED.set(true);
        let header = catch_unwind(AssertUnwindSafe(|| all.get(index)));
        PANIC_IS_EXPECTED.set(false);
        let Ok(header) = header else {
            broken.set(Some(index));
            return None;
        };
        Some((header.key, header.value))
    })
}

thread_local! {
    /// Whether a panic of this thread is caught in `headers`.
    static PANIC_IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps expected panics out of the log. All others go to the previous hook.
fn hide_expected_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !PANIC_IS_EXPECTED.get() {
            before(panic);
        }
    }));
}

/// Reads what [`native_headers`] wrote as [`wire::from_headers`] would, at half the cost. Most
/// received messages are of this form. `None` if the headers differ in any way, or came through a
/// delay topic.
fn plain<'a>(mut headers: impl Iterator<Item = Named<'a>>) -> Option<MessageFields> {
    let mut next = |name: &str| {
        let (_, value) = headers.next().filter(|(known, _)| *known == name)?;
        std::str::from_utf8(value?).ok()
    };
    let id = next(wire::ID).filter(|id| !id.is_empty())?;
    let (kind, content_type) = (next(wire::TYPE)?, next(wire::CONTENT_TYPE)?);
    let sent_at = Timestamp(next(wire::SENT_AT)?.parse().ok()?);
    let (handled, failed) =
        (next(wire::HANDLED_COUNT)?.parse().ok()?, next(wire::FAILED_COUNT)?.parse().ok()?);
    let mut users = Headers::default();
    for (name, value) in headers {
        if wire::is_reserved_header(name) || name.eq_ignore_ascii_case(PROCESS_AT) {
            return None;
        }
        users.append(name, value.map(Bytes::copy_from_slice).unwrap_or_default());
    }
    Some(MessageFields {
        id: id.into(),
        kind: kind.into(),
        key: None,
        content_type: content_type.into(),
        sent_at: Some(sent_at),
        headers: users,
        body: Bytes::new(),
        attempts: Attempts { handled, failed },
    })
}

fn decimal(number: impl fmt::Display, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = &mut buffer[..];
    // Twenty bytes suffice for every number here, with its sign.
    let _ = write!(rest, "{number}");
    let left = rest.len();
    &buffer[..20 - left]
}

/// Parses a number in ASCII decimal.
pub(crate) fn number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_headers_agree() {
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

    #[test]
    fn both_ways_to_read_a_message_agree() {
        let written = |headers: &[(&str, &str)]| {
            let all = headers.iter().map(|(name, value)| (*name, Some(value.as_bytes())));
            all.collect::<RawHeaders>()
        };
        let ours = [
            (wire::ID, "order-42"),
            (wire::TYPE, "orders.placed"),
            (wire::CONTENT_TYPE, "application/json"),
            (wire::SENT_AT, "-5"),
            (wire::HANDLED_COUNT, "7"),
            (wire::FAILED_COUNT, "3"),
        ];
        let with = |more: &[(&'static str, &'static str)]| [&ours, more].concat();
        let mut unnamed = ours;
        unnamed[0].1 = "";
        let mut odd = ours;
        odd[4].1 = "many";
        for (is_plain, headers) in [
            (true, with(&[])),
            (true, with(&[("tag", "one"), ("Content-Type", "text/plain"), ("tag", "")])),
            (false, with(&[("X-Dwell-Id", "two")])),
            (false, with(&[("handledcount", "9")])),
            (false, with(&[(PROCESS_AT, "5"), (ORIGINAL_TIMESTAMP, "4")])),
            (false, unnamed.to_vec()),
            (false, odd.to_vec()),
            (false, ours[..3].to_vec()),
            (false, vec![]),
        ] {
            let raw = written(&headers);
            let fields = plain(raw.iter());
            assert_eq!(fields.is_some(), is_plain, "{headers:?}");
            if let Some(fields) = fields {
                let all = raw.values().map(|(name, value)| (name, value.unwrap()));
                let (message, problem) =
                    wire::from_headers(all.collect(), None, Bytes::new(), || unreachable!());
                assert_eq!((Message::from(fields), None), (message, problem), "{headers:?}");
            }
        }
    }
}
