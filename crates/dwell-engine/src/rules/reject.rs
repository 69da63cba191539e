//! What is written on a message that is given up, and how it comes back.

use bytes::Bytes;
use dwell_core::{
    Action, Address, Delivery, Due, Error, Message, Note, Outcome, Result, Settle, Text, Timestamp, wire,
};

/// Texts in headers are cut here, in bytes.
const LONGEST: usize = 1024;

/// Why a message was given up, in the one word that other programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A handler gave up, or the budget ran out.
    DeliveryError,
    /// It could not be read, or must not be handled.
    Unacceptable,
    /// It took its worker down too often.
    Poison,
    /// It could never be sent to where it was for.
    Unroutable,
}

impl Rejection {
    /// The word in `x-rejection-reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeliveryError => "delivery_error",
            Self::Unacceptable => "unacceptable",
            Self::Poison => "poison",
            Self::Unroutable => "unroutable",
        }
    }
}

/// Writes the stamps. Body and other headers stay as they are.
pub(crate) fn stamp(
    message: &mut Message,
    reason: Rejection,
    description: &str,
    topic: &str,
    subscription: Option<&str>,
    now: Timestamp,
) {
    let kind = message.kind.to_string();
    let headers = &mut message.headers;
    headers.set(wire::ORIGINAL_TOPIC, topic.to_owned());
    headers.set(wire::ORIGINAL_TYPE, kind);
    headers.set(wire::REJECTION_REASON, reason.as_str());
    headers.set(wire::REJECTION_MESSAGE, short(description));
    headers.set(wire::REJECTED_AT, now.to_rfc3339());
    headers.take(wire::SUBSCRIPTION);
    if let Some(name) = subscription {
        headers.set(wire::SUBSCRIPTION, name.to_owned());
    }
}

/// Remembers the last error on the message itself, for whoever cannot ask a ledger.
pub(crate) fn stamp_error(message: &mut Message, error: &str) {
    message.headers.set(wire::LAST_ERROR, short(error));
}

fn short(text: &str) -> String {
    let end = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Sends a dead letter back to the subscription that gave it up, and to no other: edited if there is a `body`, with
/// both counts at zero, because a person asked. Works on any delivery read from a dead-letter or invalid channel; one
/// that is no dead letter comes back with the error.
pub fn replay(
    mut delivery: Delivery,
    body: Option<Bytes>,
    by: impl Into<Text>,
) -> Result<Settle, Box<(Delivery, Error)>> {
    let Some(to) = came_from(&delivery.message) else {
        let error = wire::homeless(&delivery.message.id);
        return Err(Box::new((delivery, error)));
    };
    delivery.message = delivery.message.anew(body);
    let note = Note { outcome: Outcome::Released, error: None, worker: by.into(), moved_to: None };
    Ok(Settle { delivery, action: Action::Move { to, due: Due::NOW }, note })
}

fn came_from(message: &Message) -> Option<Address> {
    let text = |name| message.headers.get_text(name);
    Some(Address::subscription(text(wire::ORIGINAL_TOPIC)?, text(wire::SUBSCRIPTION)?))
}
