//! A transport between a process and its broker that does what networks and brokers do: it is slow, refuses, does and
//! does not say so, says nothing at all, and loses its caller between any two steps. It also writes down what really
//! happened at the broker, which is what the checker goes by.

mod consumer;
mod ledger;
mod link;
mod producer;
mod scheduler;
mod transport;

pub(crate) use link::{Link, Rates};
pub(crate) use transport::Faulty;

use crate::trace::{Stamps, Subject, Touched};
use dwell_core::{Address, Envelope, Error, ErrorKind, Message, Text, Timestamp, wire};

fn unavailable(call: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("simulated: `{call}` cannot be served now"))
}

fn timeout(call: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("simulated: no confirmation of `{call}`"))
}

fn touched(envelope: &Envelope) -> Touched {
    Touched { subject: Subject::of(&envelope.message), to: destination(&envelope.to, &envelope.message) }
}

/// Where a message goes in the end: behind the forwarder, and for a dead letter where it came from.
fn destination(to: &Address, message: &Message) -> Address {
    let envelope = Envelope::new(to.clone(), message.clone());
    match stamps(to.topic_name(), message).and_then(|stamps| stamps.from) {
        Some((from, _)) if !is_parking(to.topic_name()) => from,
        _ => wire::final_destination(&envelope),
    }
}

/// Whether this is where a forwarder parks what it can never send.
fn is_parking(topic: &str) -> bool {
    topic.starts_with(dwell_engine::FORWARD_TOPICS)
}

/// What is written on a message that lies in a dead-letter channel.
fn stamps(topic: &str, message: &Message) -> Option<Stamps> {
    if !wire::is_dead_letter_topic(topic) {
        return None;
    }
    let text = |name| message.headers.get_text(name);
    let mut missing: Vec<&'static str> =
        wire::REJECTION_STAMPS.into_iter().filter(|name| text(name).is_none()).collect();
    // The last error of what could not be sent on is the description itself.
    missing.retain(|name| *name != wire::LAST_ERROR || !is_parking(topic));
    if text(wire::REJECTED_AT).is_some_and(|at| Timestamp::parse(at).is_err()) {
        missing.push(wire::REJECTED_AT);
    }
    if text(wire::ORIGINAL_TYPE).is_some_and(|kind| kind != &*message.kind) {
        missing.push(wire::ORIGINAL_TYPE);
    }
    let from = text(wire::ORIGINAL_TOPIC).zip(text(wire::SUBSCRIPTION)).zip(text(wire::REJECTION_REASON));
    let from = from.map(|((topic, name), reason)| {
        (Address::subscription(Text::from(topic), Text::from(name)), reason.to_owned())
    });
    Some(Stamps { from, missing })
}
