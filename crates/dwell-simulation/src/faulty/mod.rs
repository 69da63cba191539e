//! A transport between a process and its broker that injects the faults of networks and brokers: it
//! is slow, refuses calls, executes calls without confirming them, never answers, and lets its
//! caller crash between any two steps. It also records what really happened at the broker, which is
//! the input of the checker.

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
    Error::new(ErrorKind::Unavailable, format!("simulated: `{call}` is unavailable"))
}

fn timeout(call: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("simulated: no confirmation of `{call}`"))
}

fn touched(envelope: &Envelope) -> Touched {
    Touched { subject: Subject::of(&envelope.message), to: destination(&envelope.to, &envelope.message) }
}

/// Returns the final destination of a message: the one behind the forwarder, or the origin of a
/// dead letter.
fn destination(to: &Address, message: &Message) -> Address {
    let envelope = Envelope::new(to.clone(), message.clone());
    match stamps(to.topic_name(), message).and_then(|stamps| stamps.from) {
        Some((from, _)) if !is_parking(to.topic_name()) => from,
        _ => wire::final_destination(&envelope),
    }
}

/// Returns whether a forwarder parks unroutable messages in this topic.
fn is_parking(topic: &str) -> bool {
    topic.starts_with(dwell_engine::FORWARD_TOPICS)
}

/// Returns the stamps of a message in a dead-letter channel.
fn stamps(topic: &str, message: &Message) -> Option<Stamps> {
    if !wire::is_dead_letter_topic(topic) {
        return None;
    }
    let text = |name| message.headers.get_text(name);
    let mut missing: Vec<&'static str> =
        wire::REJECTION_STAMPS.into_iter().filter(|name| text(name).is_none()).collect();
    // The last error of a message that could not be forwarded is the description itself.
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
