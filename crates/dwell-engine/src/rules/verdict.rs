//! What a run of a handler came to.

use bytes::Bytes;
use dwell_core::{Due, Text};
use std::time::Duration;

/// What a run of a handler came to: one row of the outcome table each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Ack {
        /// Kept with the record; only on transports with a ledger.
        result: Option<Bytes>,
    },
    /// Again later, to this subscription alone. Counts as handled, uses up no retry.
    Defer {
        /// `None` is the subscription's `defer_delay`; zero is at once. Two different things.
        due: Option<Due>,
        /// Why, for the record.
        reason: Option<Text>,
    },
    /// It failed: any error, a panic, a timeout. The retry policy decides.
    Fail(Text),
    /// Back as it came, not counted as handled.
    Release(Text),
    /// Given up on purpose.
    Reject(Text),
    /// Unreadable, or must not be handled. Never retried.
    Invalid(Text),
    /// Of a type that nobody here handles.
    Unknown,
    /// Took its worker down too often to be tried again.
    Poison,
    /// A worker lost it without an outcome: its next run waits a while. Uses up no retry.
    Lost,
    /// The pipeline itself cannot work: the message goes back, and this performer stops.
    Misconfigured(Text),
}

impl Verdict {
    /// Handled, without a result.
    pub const ACK: Self = Self::Ack { result: None };

    /// Again after this long; zero is at once.
    pub fn defer(after: Duration) -> Self {
        Self::Defer { due: Some(Due::After(after)), reason: None }
    }

    /// Again after the subscription's `defer_delay`.
    pub fn defer_by_default() -> Self {
        Self::Defer { due: None, reason: None }
    }

    /// It failed for this reason.
    pub fn fail(error: impl Into<Text>) -> Self {
        Self::Fail(error.into())
    }
}
