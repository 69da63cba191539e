//! The names that a foreign producer or consumer may meet, and the fields of a message as headers, for brokers that
//! have no field of their own for them.

use crate::{
    Address, Attempts, ContentType, Envelope, Error, ErrorKind, Headers, Message, MessageFields, MessageId,
    Text, Timestamp, is_job_topic,
};
use bytes::Bytes;

/// [`Attempts::handled`], in ASCII decimal.
pub const HANDLED_COUNT: &str = "HandledCount";
/// [`Attempts::failed`], in ASCII decimal.
pub const FAILED_COUNT: &str = "x-dwell-failed-count";
/// The message id.
pub const ID: &str = "x-dwell-id";
/// The message's type name.
pub const TYPE: &str = "x-dwell-type";
/// What the body is.
pub const CONTENT_TYPE: &str = "content-type";
/// When it was first sent, in milliseconds since the epoch.
pub const SENT_AT: &str = "x-dwell-sent-at";
/// On a dead letter: the subscription that gave it up, and to which alone a replay returns it.
pub const SUBSCRIPTION: &str = "x-dwell-subscription";
/// The last error of a message that failed or died.
pub const LAST_ERROR: &str = "x-dwell-last-error";
/// A job's own retry limit, over its type's.
pub const MAX_RETRIES: &str = "x-dwell-max-retries";
/// How often a message was lost by a worker that never said what became of it, and waited for its next run.
pub const LOST_COUNT: &str = "x-dwell-lost-count";
/// On a dead letter: the topic that it came from.
pub const ORIGINAL_TOPIC: &str = "x-original-topic";
/// On a dead letter: its type.
pub const ORIGINAL_TYPE: &str = "x-original-type";
/// On a dead letter: one of `delivery_error`, `unacceptable`, `poison`, `unroutable`.
pub const REJECTION_REASON: &str = "x-rejection-reason";
/// On a dead letter: the description.
pub const REJECTION_MESSAGE: &str = "x-rejection-message";
/// On a dead letter: when, as RFC 3339.
pub const REJECTED_AT: &str = "x-rejected-at";
/// On what waits in a store for another broker: the topic there.
pub const TO_TOPIC: &str = "x-dwell-to-topic";
/// On what waits in a store for another broker: the subscription there, if it is addressed alone.
pub const TO_SUBSCRIPTION: &str = "x-dwell-to-subscription";
/// On an entry of a store for another broker: tells it apart from other entries of its id. For the copy of a settlement, `at`
/// and [`crate::Receipt::identity`]; for a message whose target was unavailable, a number for each time that it waits, behind
/// [`DOUBT`] if the message may have been sent.
pub const HELD: &str = "x-dwell-held";
/// Start of [`HELD`] on an entry that the forwarder may have sent already: see [`is_in_doubt`].
pub const DOUBT: &str = "doubt";

/// The stamps of a rejection.
pub const REJECTION_STAMPS: [&str; 7] = [
    ORIGINAL_TOPIC,
    ORIGINAL_TYPE,
    REJECTION_REASON,
    REJECTION_MESSAGE,
    REJECTED_AT,
    SUBSCRIPTION,
    LAST_ERROR,
];

/// That a dead letter cannot be replayed, because nothing says where to.
pub fn homeless(id: &MessageId) -> Error {
    let text = format!(
        "the dead letter `{id}` does not say where it came from: it has no `{ORIGINAL_TOPIC}` or no `{SUBSCRIPTION}`; send \
         its content anew"
    );
    Error::new(ErrorKind::Invalid, text)
}

/// What a replay strips: these stamps, and the count of crashes before it.
pub(crate) fn strip_for_replay(headers: &mut Headers) {
    for name in REJECTION_STAMPS.into_iter().chain([LOST_COUNT]) {
        headers.take(name);
    }
}

/// Whether Dwell writes this header itself, so that a user may not.
pub fn is_reserved_header(name: &str) -> bool {
    let starts =
        |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    name.eq_ignore_ascii_case(HANDLED_COUNT)
        || name.eq_ignore_ascii_case(REJECTED_AT)
        || ["x-dwell-", "x-original-", "x-rejection-"].into_iter().any(starts)
}

/// Whether what lies in this topic was given up: such records are `dead`, and their consumers have no dead-letter
/// channel of their own.
pub fn is_dead_letter_topic(topic: &str) -> bool {
    topic.ends_with(".dlq") || topic.ends_with(".invalid")
}

/// The headers of `message`, with its other fields written in front: what a broker without fields carries.
pub fn to_headers(message: &Message) -> Headers {
    let mut headers = Headers::default();
    headers.append(ID, message.id.to_string());
    headers.append(TYPE, message.kind.to_string());
    headers.append(CONTENT_TYPE, message.content_type.to_string());
    if let Some(at) = message.sent_at {
        headers.append(SENT_AT, at.0.to_string());
    }
    headers.append(HANDLED_COUNT, message.attempts.handled.to_string());
    headers.append(FAILED_COUNT, message.attempts.failed.to_string());
    headers.extend(message.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    headers
}

/// The message behind what [`to_headers`] wrote, and what could not be read of it, for [`crate::Delivery::problem`]. What
/// a foreign sender left out has a default: `position` names a message without an id, so that a redelivery has the same
/// one. A count that cannot be read is a problem and not a zero, which would reset a budget; it is kept under
/// `x-dwell-unreadable-…`, so that people can see it.
pub fn from_headers(
    mut headers: Headers,
    key: Option<Bytes>,
    body: Bytes,
    position: impl FnOnce() -> MessageId,
) -> (Message, Option<Text>) {
    let mut problem = None;
    let handled = take_number(&mut headers, HANDLED_COUNT, &mut problem).unwrap_or(0);
    let failed = take_number(&mut headers, FAILED_COUNT, &mut problem).unwrap_or(0);
    let sent_at = take_number(&mut headers, SENT_AT, &mut problem).map(Timestamp);
    // The first alone: a user may have a header of that name as well, and it comes behind ours.
    let content_type = headers.take_first(CONTENT_TYPE);
    let mut text = |name| headers.take(name).map(lossy);
    let message = Message::from(MessageFields {
        id: text(ID).filter(|id| !id.is_empty()).map_or_else(position, MessageId::from),
        kind: text(TYPE).unwrap_or_default().into(),
        content_type: content_type.map_or(ContentType::BYTES, |value| lossy(value).into()),
        key,
        sent_at,
        headers,
        body,
        attempts: Attempts { handled, failed },
    });
    (message, problem)
}

fn lossy(value: Bytes) -> String {
    String::from_utf8_lossy(&value).into_owned()
}

fn take_number<N: std::str::FromStr>(
    headers: &mut Headers,
    name: &str,
    problem: &mut Option<Text>,
) -> Option<N> {
    let value = headers.take(name)?;
    let number = std::str::from_utf8(&value).ok().and_then(|text| text.trim().parse().ok());
    if number.is_none() {
        let shown: String = lossy(value.clone()).chars().take(40).flat_map(char::escape_default).collect();
        let text = format!("the header `{name}` is `{shown}`, which is not a number it can be");
        problem.get_or_insert_with(|| text.into());
        headers.append(format!("x-dwell-unreadable-{name}"), value);
    }
    number
}

/// Where an envelope goes in the end: what its `x-dwell-to-*` headers say, where it only waits for a forwarder.
pub fn final_destination(envelope: &Envelope) -> Address {
    destination(&envelope.message.headers).unwrap_or_else(|| envelope.to.clone())
}

/// Addresses a message that waits elsewhere to its final destination.
pub fn set_destination(headers: &mut Headers, to: &Address) {
    headers.set(TO_TOPIC, to.topic_name().to_string());
    headers.take(TO_SUBSCRIPTION);
    if let Some(name) = to.subscription_name() {
        headers.set(TO_SUBSCRIPTION, name.to_string());
    }
}

/// The reverse of [`set_destination`]: `None` if there is none, and the headers as they were before it.
pub fn take_destination(headers: &mut Headers) -> Option<Address> {
    let to = destination(headers);
    headers.take(TO_TOPIC);
    headers.take(TO_SUBSCRIPTION);
    headers.take(HELD);
    to
}

/// Whether the forwarder may have sent this message already, although the store still holds it: the confirmation of an
/// earlier attempt was lost. It is sent again, and nobody can cancel it.
pub fn is_in_doubt(headers: &Headers) -> bool {
    headers.get_text(HELD).is_some_and(|held| held.starts_with(DOUBT))
}

/// Whether a message in this topic is a job, or waits there to become one in another broker.
pub fn is_job(topic: &str, headers: &Headers) -> bool {
    is_job_topic(headers.get_text(TO_TOPIC).unwrap_or(topic))
}

/// The final destination of a message that waits for a forwarder; `None` if it waits for none.
pub fn destination(headers: &Headers) -> Option<Address> {
    let topic: Text = headers.get_text(TO_TOPIC)?.into();
    Some(match headers.get_text(TO_SUBSCRIPTION) {
        Some(name) => Address::Subscription { topic, name: name.into() },
        None => Address::Topic(topic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let mut message = Message::new("a", "orders.placed", "42");
        message.headers = Headers::from_iter([("x", "1"), ("x", "2")]);
        message.attempts = Attempts { handled: 3, failed: 2 };
        message.sent_at = Some(Timestamp(1_700_000_000_000));
        message
    }

    #[test]
    fn a_message_survives_a_broker_that_has_only_headers() {
        let headers = to_headers(&message());
        let back = from_headers(headers, None, "42".into(), || unreachable!("it has an id"));
        assert_eq!(back, (message(), None));
    }

    #[test]
    fn a_users_own_content_type_header_is_kept_beside_the_messages() {
        let mut sent = message();
        sent.headers.append("Content-Type", "text/mine");
        let back = from_headers(to_headers(&sent), None, "42".into(), || unreachable!("it has an id"));
        assert_eq!(back, (sent, None));
    }

    #[test]
    fn a_foreign_message_gets_its_id_from_its_position() {
        let (back, _) = from_headers(Headers::default(), None, "42".into(), || "orders:0:17".into());
        assert_eq!((&*back.id.0, back.attempts), ("orders:0:17", Attempts::default()));
    }

    #[test]
    fn a_count_that_cannot_be_read_is_a_problem_and_never_silently_zero() {
        for count in ["", "three", "-1", "4294967296"] {
            let headers = Headers::from_iter([(HANDLED_COUNT, count.to_owned())]);
            let (message, problem) = from_headers(headers, None, Bytes::new(), || "p".into());
            assert!(problem.unwrap().contains(HANDLED_COUNT), "{count:?}");
            assert_eq!(message.headers.get_text("x-dwell-unreadable-HandledCount"), Some(count));
            let (_, problem) = from_headers(to_headers(&message), None, Bytes::new(), || "p".into());
            assert_eq!(problem, None, "read once, it can be read again");
        }
    }

    #[test]
    fn a_detour_leaves_no_trace_in_the_headers() {
        let mut message = message();
        set_destination(&mut message.headers, &Address::subscription("orders", "mail"));
        assert_eq!(take_destination(&mut message.headers), Some(Address::subscription("orders", "mail")));
        assert_eq!(message, super::tests::message());
        assert_eq!(take_destination(&mut message.headers), None);
    }
}
