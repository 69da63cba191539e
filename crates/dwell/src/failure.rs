//! Why a handler did not succeed, and what is to become of the message.

use crate::cx::Cx;
use dwell_core::{BoxError, Due, Text, Timestamp};
use dwell_engine::Verdict;
use std::{fmt, time::Duration};

/// Why a handler did not succeed. Any error becomes one by `?`, and then the retry policy decides; or it is made on
/// purpose, to say what is to become of the message.
///
/// ```
/// use dwell::Failure;
/// use std::time::Duration;
///
/// fn handle(order: &str, shop_is_open: bool) -> Result<u64, Failure> {
///     let order: u64 = order.parse()?;                                        // tried again, with backoff
///     if order == 0 {
///         return Err(Failure::reject("there is no order 0"));                 // dead letter, at once
///     }
///     if !shop_is_open {
///         return Err(Failure::defer().after(Duration::from_secs(3600)));      // later; uses up no retry
///     }
///     Ok(order)
/// }
///
/// assert!(handle("1", true).is_ok());
/// assert_eq!(handle("x", true).unwrap_err().to_string(), "failed: invalid digit found in string");
/// assert_eq!(handle("1", false).unwrap_err().to_string(), "deferred by 1h");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(Verdict);

impl Failure {
    /// Again later, to this subscription alone: after the subscription's `defer_delay`, unless [`after`](Self::after)
    /// or [`at`](Self::at) says when. It uses up no retry.
    pub fn defer() -> Self {
        Self(Verdict::defer_by_default())
    }

    /// When a deferral comes back, counted from now; zero is at once. Any other failure stays as it is.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.due(Due::After(delay))
    }

    /// When a deferral comes back. Any other failure stays as it is.
    #[must_use]
    pub fn at(self, time: impl Into<Timestamp>) -> Self {
        self.due(Due::At(time.into()))
    }

    fn due(self, due: Due) -> Self {
        match self.0 {
            Verdict::Defer { reason, .. } => Self(Verdict::Defer { due: Some(due), reason }),
            other => Self(other),
        }
    }

    /// Given up, for good: to the dead letters, at once.
    pub fn reject(reason: impl Into<Text>) -> Self {
        Self(Verdict::Reject(reason.into()))
    }

    /// Back as it came, not counted as handled, and not before the subscription's `release_delay`.
    pub fn release(reason: impl Into<Text>) -> Self {
        Self(Verdict::Release(reason.into()))
    }

    /// The message itself is wrong: to the invalid messages, never tried again.
    pub fn invalid(reason: impl Into<Text>) -> Self {
        Self(Verdict::Invalid(reason.into()))
    }

    /// This handler cannot work as it is set up: the message goes back, and this subscription stops here, with a status
    /// that says why.
    pub fn misconfigured(reason: impl Into<Text>) -> Self {
        Self(Verdict::Misconfigured(reason.into()))
    }

    pub(crate) fn of(verdict: Verdict) -> Self {
        Self(verdict)
    }

    pub(crate) fn into_verdict(self) -> Verdict {
        self.0
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Verdict::Fail(chain(&*error.into()).into()))
    }
}

/// An error with all its causes, each said once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Verdict::Defer { due: None, .. } => f.write_str("deferred"),
            Verdict::Defer { due: Some(Due::After(delay)), .. } => {
                write!(f, "deferred by {}", dwell_core::format_duration(*delay))
            }
            Verdict::Defer { due: Some(Due::At(time)), .. } => {
                write!(f, "deferred until {}", time.to_rfc3339())
            }
            Verdict::Reject(reason) => write!(f, "rejected: {reason}"),
            Verdict::Release(reason) => write!(f, "released: {reason}"),
            Verdict::Invalid(reason) => write!(f, "invalid: {reason}"),
            Verdict::Misconfigured(reason) => write!(f, "misconfigured: {reason}"),
            Verdict::Fail(error) => write!(f, "failed: {error}"),
            Verdict::Ack { .. } | Verdict::Unknown | Verdict::Poison | Verdict::Lost => f.write_str("failed"),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

/// What a handler may return: nothing, or a result whose error becomes a [`Failure`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "it returns nothing, or `Result<(), E>` where `E` is `Failure` or any error"
)]
pub trait Ending: Send + 'static {
    #[doc(hidden)]
    fn verdict(self, cx: &Cx) -> Verdict;
}

impl Ending for () {
    fn verdict(self, _: &Cx) -> Verdict {
        Verdict::ACK
    }
}

impl<E: Into<Failure> + Send + 'static> Ending for Result<(), E> {
    fn verdict(self, _: &Cx) -> Verdict {
        match self {
            Ok(()) => Verdict::ACK,
            Err(error) => error.into().into_verdict(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_becomes_a_failure_with_all_its_causes() {
        let root = std::io::Error::other("disk gone");
        let error = anyhow::Error::from(root).context("could not save").context("order 7");
        let failure: Failure = error.into();
        assert_eq!(failure.to_string(), "failed: order 7: could not save: disk gone");
        let from_text: Failure = "plain".into();
        assert_eq!(from_text.to_string(), "failed: plain");
    }

    #[test]
    fn only_a_deferral_has_a_time() {
        let reject = Failure::reject("no");
        assert_eq!(reject.clone().after(Duration::from_secs(1)), reject);
        assert_ne!(Failure::defer(), Failure::defer().after(Duration::ZERO), "at once is not the default");
    }
}
