//! The headers of dead letters, and replay.

use bytes::Bytes;
use dwell_core::{
    Action, Address, Delivery, Due, Error, Message, Note, Outcome, Result, Settle, Text, Timestamp, wire,
};

/// Maximum length of a text in a header, in bytes.
const LONGEST: usize = 1024;

/// Why a message was given up. Other programs read the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The handler gave up, or the budget was used up.
    DeliveryError,
    /// The message is unreadable, or must not be handled.
    Unacceptable,
    /// The message took down its worker too often.
    Poison,
    /// The message can never be sent to its destination.
    Unroutable,
}

impl Rejection {
    /// Returns the word in `x-rejection-reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeliveryError => "delivery_error",
            Self::Unacceptable => "unacceptable",
            Self::Poison => "poison",
            Self::Unroutable => "unroutable",
        }
    }
}

/// Adds the headers of a rejection. Body and other headers do not change.
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

/// Stores the last error in the message, for programs without a ledger.
pub(crate) fn stamp_error(message: &mut Message, error: &str) {
    message.headers.set(wire::LAST_ERROR, short(error));
}

fn short(text: &str) -> String {
    let end = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

/// Returns a dead letter to the subscription that gave it up, and to no other. `body` replaces its
/// body. Both counts are reset. Works for any delivery from a dead-letter or invalid channel. A
/// delivery that is not a dead letter is returned with the error.
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
