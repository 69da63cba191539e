//! Header names that other programs may meet, and the fields of a message as headers, for brokers
//! that carry no such fields.

use crate::{
    Address, Attempts, ContentType, Envelope, Error, ErrorKind, Headers, Message, MessageFields, MessageId,
    Text, Timestamp, is_job_topic,
};
use bytes::Bytes;

/// [`Attempts::handled`], in ASCII decimal.
pub const HANDLED_COUNT: &str = "HandledCount";
/// [`Attempts::failed`], in ASCII decimal.
pub const FAILED_COUNT: &str = "x-dwell-failed-count";
/// Message id.
pub const ID: &str = "x-dwell-id";
/// Message type.
pub const TYPE: &str = "x-dwell-type";
/// Content type of the body.
pub const CONTENT_TYPE: &str = "content-type";
/// Time of the first send, in milliseconds since the epoch.
pub const SENT_AT: &str = "x-dwell-sent-at";
/// On a dead letter: the subscription that gave up the message. A replay returns the message to
/// this subscription only.
pub const SUBSCRIPTION: &str = "x-dwell-subscription";
/// Last error of a message that failed or is dead.
pub const LAST_ERROR: &str = "x-dwell-last-error";
/// Retry limit of a job. Overrides the limit of its type.
pub const MAX_RETRIES: &str = "x-dwell-max-retries";
/// Number of times that a worker lost the message without an outcome, and the message was scheduled
/// for another run.
pub const LOST_COUNT: &str = "x-dwell-lost-count";
/// On a dead letter: original topic.
pub const ORIGINAL_TOPIC: &str = "x-original-topic";
/// On a dead letter: message type.
pub const ORIGINAL_TYPE: &str = "x-original-type";
/// On a dead letter: one of `delivery_error`, `unacceptable`, `poison`, `unroutable`.
pub const REJECTION_REASON: &str = "x-rejection-reason";
/// On a dead letter: description of the reason.
pub const REJECTION_MESSAGE: &str = "x-rejection-message";
/// On a dead letter: time of the rejection, in RFC 3339.
pub const REJECTED_AT: &str = "x-rejected-at";
/// On a message in a store for another broker: topic of the destination.
pub const TO_TOPIC: &str = "x-dwell-to-topic";
/// On a message in a store for another broker: subscription of the destination, if the message is
/// addressed to one.
pub const TO_SUBSCRIPTION: &str = "x-dwell-to-subscription";
/// On an entry of a store for another broker: tells it apart from other entries of its id. For the
/// copy of a settlement, `at` and [`crate::Receipt::identity`]; for a message whose target was
/// unavailable, a number for each time that it waits, behind [`DOUBT`] if the message may have been
/// sent.
pub const HELD: &str = "x-dwell-held";
/// Start of [`HELD`] on an entry that the forwarder may have sent already: see [`is_in_doubt`].
pub const DOUBT: &str = "doubt";

/// The headers that a rejection adds.
pub const REJECTION_STAMPS: [&str; 7] = [
    ORIGINAL_TOPIC,
    ORIGINAL_TYPE,
    REJECTION_REASON,
    REJECTION_MESSAGE,
    REJECTED_AT,
    SUBSCRIPTION,
    LAST_ERROR,
];

/// Returns the error for a dead letter that cannot be replayed because its origin is unknown.
pub fn homeless(id: &MessageId) -> Error {
    let text = format!(
        "the dead letter `{id}` cannot be replayed: its header `{ORIGINAL_TOPIC}` or `{SUBSCRIPTION}` is missing; \
         send its content as a new message"
    );
    Error::new(ErrorKind::Invalid, text)
}

/// Removes the headers that a replay does not keep: the rejection headers and the count of losses.
pub(crate) fn strip_for_replay(headers: &mut Headers) {
    for name in REJECTION_STAMPS.into_iter().chain([LOST_COUNT]) {
        headers.take(name);
    }
}

/// Whether Dwell writes this header, so that users may not set it.
pub fn is_reserved_header(name: &str) -> bool {
    let starts =
        |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    name.eq_ignore_ascii_case(HANDLED_COUNT)
        || name.eq_ignore_ascii_case(REJECTED_AT)
        || ["x-dwell-", "x-original-", "x-rejection-"].into_iter().any(starts)
}

/// Whether the topic is a dead-letter or invalid channel. Its records are `dead`, and its
/// subscriptions have no dead-letter channel.
pub fn is_dead_letter_topic(topic: &str) -> bool {
    topic.ends_with(".dlq") || topic.ends_with(".invalid")
}

/// Returns the fields and headers of `message` as headers, for a broker that carries no fields. The
/// fields come first.
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

/// Returns the message that [`to_headers`] wrote, and the problem if a field is unreadable, for
/// [`crate::Delivery::problem`].
///
/// Fields that another program left out have defaults. A message without an id takes the id from
/// `position`, so that a redelivery has the same id. An unreadable count is a problem and not zero,
/// because zero would reset a budget. It is kept in the header `x-dwell-unreadable-…` for people to
/// see.
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
    // Takes the first value only. A user's header of this name comes after ours.
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
        let text = format!("the header `{name}` is `{shown}`, which is not a valid number");
        problem.get_or_insert_with(|| text.into());
        headers.append(format!("x-dwell-unreadable-{name}"), value);
    }
    number
}

/// Returns the final destination of an envelope: that of its `x-dwell-to-*` headers if present,
/// else its address.
pub fn final_destination(envelope: &Envelope) -> Address {
    destination(&envelope.message.headers).unwrap_or_else(|| envelope.to.clone())
}

/// Writes the final destination of a message that is stored for another broker.
pub fn set_destination(headers: &mut Headers, to: &Address) {
    headers.set(TO_TOPIC, to.topic_name().to_string());
    headers.take(TO_SUBSCRIPTION);
    if let Some(name) = to.subscription_name() {
        headers.set(TO_SUBSCRIPTION, name.to_string());
    }
}

/// Reverses [`set_destination`]: removes its headers and returns the destination, or `None` without
/// one.
pub fn take_destination(headers: &mut Headers) -> Option<Address> {
    let to = destination(headers);
    headers.take(TO_TOPIC);
    headers.take(TO_SUBSCRIPTION);
    headers.take(HELD);
    to
}

/// Whether the forwarder may have sent this message already, although the store still holds it: the
/// confirmation of an earlier attempt was lost. It is sent again, and nobody can cancel it.
pub fn is_in_doubt(headers: &Headers) -> bool {
    headers.get_text(HELD).is_some_and(|held| held.starts_with(DOUBT))
}

/// Whether a message in this topic is a job, or waits there to become one in another broker.
pub fn is_job(topic: &str, headers: &Headers) -> bool {
    is_job_topic(headers.get_text(TO_TOPIC).unwrap_or(topic))
}

/// Returns the final destination of a message that is stored for a forwarder. `None` if the message
/// is not for a forwarder.
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
    fn headers_carry_the_whole_message() {
        let headers = to_headers(&message());
        let back = from_headers(headers, None, "42".into(), || unreachable!("the message has an id"));
        assert_eq!(back, (message(), None));
    }

    #[test]
    fn a_users_content_type_header_is_kept() {
        let mut sent = message();
        sent.headers.append("Content-Type", "text/mine");
        let back =
            from_headers(to_headers(&sent), None, "42".into(), || unreachable!("the message has an id"));
        assert_eq!(back, (sent, None));
    }

    #[test]
    fn a_foreign_message_gets_its_id_from_its_position() {
        let (back, _) = from_headers(Headers::default(), None, "42".into(), || "orders:0:17".into());
        assert_eq!((&*back.id.0, back.attempts), ("orders:0:17", Attempts::default()));
    }

    #[test]
    fn an_unreadable_count_is_a_problem_and_not_zero() {
        for count in ["", "three", "-1", "4294967296"] {
            let headers = Headers::from_iter([(HANDLED_COUNT, count.to_owned())]);
            let (message, problem) = from_headers(headers, None, Bytes::new(), || "p".into());
            assert!(problem.unwrap().contains(HANDLED_COUNT), "{count:?}");
            assert_eq!(message.headers.get_text("x-dwell-unreadable-HandledCount"), Some(count));
            let (_, problem) = from_headers(to_headers(&message), None, Bytes::new(), || "p".into());
            assert_eq!(problem, None, "the unreadable count was replaced");
        }
    }

    #[test]
    fn taking_the_destination_removes_its_headers() {
        let mut message = message();
        set_destination(&mut message.headers, &Address::subscription("orders", "mail"));
        assert_eq!(take_destination(&mut message.headers), Some(Address::subscription("orders", "mail")));
        assert_eq!(message, super::tests::message());
        assert_eq!(take_destination(&mut message.headers), None);
    }
}
