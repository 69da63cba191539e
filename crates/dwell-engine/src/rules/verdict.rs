//! The result of a run.

use bytes::Bytes;
use dwell_core::{Due, Text};
use std::time::Duration;

/// The result of a run. Each variant is a row of the outcome table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled successfully.
    Ack {
        /// Result, stored with the record. Only on transports with a ledger.
        result: Option<Bytes>,
    },
    /// Run again later, in this subscription only. Counts as a run, but uses up no retry.
    Defer {
        /// Due time. `None` is the subscription's `defer_delay`, which differs from a zero delay.
        due: Option<Due>,
        /// Reason, for the record.
        reason: Option<Text>,
    },
    /// Failed: an error, a panic or a timeout. The retry policy decides what happens.
    Fail(Text),
    /// Return the message unchanged, without counting a run.
    Release(Text),
    /// Give up the message.
    Reject(Text),
    /// The message is unreadable, or must not be handled. Never retried.
    Invalid(Text),
    /// No handler exists for the type of the message.
    Unknown,
    /// The message took down its worker too often.
    Poison,
    /// A worker lost the message without an outcome. The next run is delayed. Uses up no retry.
    Lost,
    /// The pipeline cannot work: the message is returned, and this performer stops.
    Misconfigured(Text),
}

impl Verdict {
    /// Handled successfully, without a result.
    pub const ACK: Self = Self::Ack { result: None };

    /// Run again after this delay. Zero is immediately.
    pub fn defer(after: Duration) -> Self {
        Self::Defer { due: Some(Due::After(after)), reason: None }
    }

    /// Run again after the subscription's `defer_delay`.
    pub fn defer_by_default() -> Self {
        Self::Defer { due: None, reason: None }
    }

    /// Failed for this reason.
    pub fn fail(error: impl Into<Text>) -> Self {
        Self::Fail(error.into())
    }
}
