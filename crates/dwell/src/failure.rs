//! The failure of a handler, which determines what happens to the message.

use crate::cx::Cx;
use dwell_core::{BoxError, Due, Text, Timestamp};
use dwell_engine::Verdict;
use std::{fmt, time::Duration};

/// The reason why a handler did not complete a message. `?` converts any error into one, and the
/// retry policy then applies. The constructors below instead specify what happens to the message.
///
/// ```
/// use dwell::Failure;
/// use std::time::Duration;
///
/// fn handle(order: &str, shop_is_open: bool) -> Result<u64, Failure> {
///     let order: u64 = order.parse()?;                                    // retried, with backoff
///     if order == 0 {
///         return Err(Failure::reject("there is no order 0"));             // dead letter, at once
///     }
///     if !shop_is_open {
///         return Err(Failure::defer().after(Duration::from_secs(3600)));  // later, not a retry
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
    /// Defers the message: it is delivered again, to this subscription only, after the
    /// `defer_delay` of the subscription. Set another time with [`after`](Self::after) or
    /// [`at`](Self::at). A deferral does not count as a retry.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track;
    /// async fn track(_: Track, cx: Cx) -> Result<(), Failure> {
    ///     if cx.attempt() < 4 { Err(Failure::defer()) } else { Ok(()) } // not delivered yet
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// # t.send(Track).await?;
    /// # t.advance(Duration::from_secs(3)).await;
    /// assert_eq!((t.deferred::<Track>(), t.failed::<Track>(), t.handled::<Track>()), (3, 0, 1));
    /// # Ok(()) }
    /// ```
    pub fn defer() -> Self {
        Self(Verdict::defer_by_default())
    }

    /// Sets the delay of a deferral from now. Zero redelivers at once. Has no effect on other
    /// failures.
    ///
    /// ```
    /// use dwell::Failure;
    /// use std::time::Duration;
    ///
    /// let later = Failure::defer().after(Duration::from_secs(90));
    /// assert_eq!(later.to_string(), "deferred by 1m30s");
    /// ```
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.due(Due::After(delay))
    }

    /// Sets the due time of a deferral. Has no effect on other failures.
    ///
    /// ```
    /// use dwell::{Failure, Timestamp};
    ///
    /// let new_year = Failure::defer().at(Timestamp::parse("2027-01-01T00:00:00Z").unwrap());
    /// assert_eq!(new_year.to_string(), "deferred until 2027-01-01T00:00:00.000Z");
    /// ```
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

    /// Rejects the message: it becomes a dead letter without a retry.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// async fn charge(command: Charge) -> Result<(), Failure> {
    ///     Err(Failure::reject(format!("the card of order {} is stolen", command.order)))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
    /// # t.send(Charge { order: 42 }).await?;
    /// # t.run_until_idle().await;
    /// assert_eq!((t.dead::<Charge>(), t.failed::<Charge>()), (1, 0), "not retried");
    /// assert_eq!(t.errors::<Charge>(), ["the card of order 42 is stolen"]);
    /// # Ok(()) }
    /// ```
    pub fn reject(reason: impl Into<Text>) -> Self {
        Self(Verdict::Reject(reason.into()))
    }

    /// Releases the message: it is redelivered unchanged after the `release_delay` of the
    /// subscription, and the run is not counted.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "print")]
    /// # struct Print;
    /// type HasPaper = State<Arc<AtomicBool>>;
    ///
    /// async fn print(_: Print, State(has_paper): HasPaper, cx: Cx) -> Result<(), Failure> {
    ///     if !has_paper.load(Ordering::Relaxed) {
    ///         return Err(Failure::release("this printer has no paper"));
    ///     }
    ///     assert_eq!(cx.attempt(), 1, "a released run is not counted");
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let has_paper = Arc::new(AtomicBool::new(false));
    /// # let t =
    /// #     dwell::testing::start(Bus::builder().state(has_paper.clone()).handle(print)).await?;
    /// # t.send(Print).await?;
    /// # t.advance(Duration::from_secs(10)).await;
    /// # has_paper.store(true, Ordering::Relaxed);
    /// # t.advance(Duration::from_secs(10)).await;
    /// # assert_eq!(t.handled::<Print>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn release(reason: impl Into<Text>) -> Self {
        Self(Verdict::Release(reason.into()))
    }

    /// Declares the message invalid: it is stored with the invalid messages and not retried.
    ///
    /// ```
    /// use dwell::Failure;
    ///
    /// fn check(quantity: i64) -> Result<u64, Failure> {
    ///     u64::try_from(quantity).map_err(|_| Failure::invalid("the quantity is negative"))
    /// }
    ///
    /// assert_eq!(check(-1).unwrap_err().to_string(), "invalid: the quantity is negative");
    /// ```
    pub fn invalid(reason: impl Into<Text>) -> Self {
        Self(Verdict::Invalid(reason.into()))
    }

    /// Reports that the handler is misconfigured. The message is released, and the subscription
    /// stops in this process with a status that contains the reason.
    ///
    /// ```
    /// use dwell::Failure;
    ///
    /// fn api_key() -> Result<String, Failure> {
    ///     std::env::var("SHOP_MAIL_API_KEY")
    ///         .map_err(|_| Failure::misconfigured("SHOP_MAIL_API_KEY is not set"))
    /// }
    ///
    /// assert_eq!(
    ///     api_key().unwrap_err().to_string(),
    ///     "misconfigured: SHOP_MAIL_API_KEY is not set"
    /// );
    /// ```
    pub fn misconfigured(reason: impl Into<Text>) -> Self {
        Self(Verdict::Misconfigured(reason.into()))
    }

    /// Returns the text of an error, a panic or a timeout, to which the retry policy applies.
    /// Returns `None` for the other failures, which specify what happens to the message. A custom
    /// step that handles errors should return those unchanged, as the backstops do.
    ///
    /// ```
    /// use dwell::Failure;
    ///
    /// let error: Failure = "the printer is on fire".into();
    /// assert_eq!(error.error(), Some("the printer is on fire"));
    /// assert_eq!(Failure::reject("there is no printer").error(), None);
    /// assert_eq!(Failure::defer().error(), None);
    /// ```
    pub fn error(&self) -> Option<&str> {
        match &self.0 {
            Verdict::Fail(error) => Some(error),
            _ => None,
        }
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

/// Returns the text of an error and of its causes, without repetitions.
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

/// The return type of a handler: `()`, or a result whose error converts into a [`Failure`].
///
/// ```
/// use dwell::{Ending, prelude::*};
///
/// fn is_ending<T: Ending>() {}
///
/// is_ending::<()>();
/// is_ending::<Result<(), Failure>>();
/// is_ending::<Result<(), std::io::Error>>();
/// is_ending::<anyhow::Result<()>>();
/// ```
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "it returns nothing, or `Result<(), E>` where `E` is `Failure` or any error",
    note = "a function that returns a value is a job handler: `.job(function)`, without `#[handler]`, and with steps by `Pipeline::job(function).step(…)`"
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
    fn an_error_converts_with_all_its_causes() {
        let root = std::io::Error::other("disk gone");
        let error = anyhow::Error::from(root).context("could not save").context("order 7");
        let failure: Failure = error.into();
        assert_eq!(failure.to_string(), "failed: order 7: could not save: disk gone");
        let from_text: Failure = "plain".into();
        assert_eq!(from_text.to_string(), "failed: plain");
    }

    #[test]
    fn after_changes_only_deferrals() {
        let reject = Failure::reject("no");
        assert_eq!(reject.clone().after(Duration::from_secs(1)), reject);
        assert_ne!(
            Failure::defer(),
            Failure::defer().after(Duration::ZERO),
            "a delay of zero differs from the default delay"
        );
    }
}
