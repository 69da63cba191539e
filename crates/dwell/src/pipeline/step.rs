//! One step of a pipeline, as a value: two pipelines can be compared.

use super::{
    Next,
    steps::{
        Around, Backstop, CircuitBreaker, DeferOnError, Inbox, Layer, RateLimit, Retry, RetryInline, Timeout,
    },
};
use crate::{Cx, Failure};
use dwell_core::{RetryOverride, Text};
use std::{fmt, time::Duration};

/// A step around a handler. Each is made by one of the functions here, and set by the methods of what they return.
#[derive(Clone, PartialEq)]
pub struct Step {
    number: Option<i32>,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Backstop(Backstop),
    Retry(Retry),
    RetryInline(RetryInline),
    Timeout(Timeout),
    CircuitBreaker(CircuitBreaker),
    RateLimit(RateLimit),
    Inbox(Inbox),
    Around(Around),
}

impl Step {
    /// Turns an error or a panic into a deferral: the message comes back later, and no retry is used up. Without a
    /// delay of its own it waits the subscription's `defer_delay`; zero is at once.
    pub fn defer_on_error() -> DeferOnError {
        DeferOnError::default()
    }

    /// Turns an error or a panic into a rejection: the message is a dead letter at once.
    pub fn reject_on_error() -> Self {
        Self::from(Kind::Backstop(Backstop::Reject))
    }

    /// Turns an error or a panic into a release: the message goes back as it came, uncounted.
    pub fn release_on_error() -> Self {
        Self::from(Kind::Backstop(Backstop::Release))
    }

    /// The durable retry policy of this message type in this subscription: what is not set here is the subscription's.
    /// The message leaves its slot while it waits, and waits over a restart.
    pub fn retry() -> Retry {
        Retry::default()
    }

    /// Tries again at once, or after short pauses, while the message keeps its slot. For errors that are over in a
    /// moment.
    pub fn retry_inline() -> RetryInline {
        RetryInline::default()
    }

    /// What is inside must end within this time; else it is dropped, and counts as failed.
    pub fn timeout(after: Duration) -> Self {
        Self::from(Kind::Timeout(Timeout(after)))
    }

    /// After so many failures in a row, messages are deferred unseen for a while; then one is let through to try.
    pub fn circuit_breaker() -> CircuitBreaker {
        CircuitBreaker::default()
    }

    /// Lets so many runs through per second. A run waits its turn for up to a second, and is deferred if that is not
    /// enough. The subscription's `rate` does the same without holding a slot, for all of its handlers together.
    pub fn rate_limit(per_second: f64) -> RateLimit {
        RateLimit::new(per_second)
    }

    /// Effects once: a message that this subscription has handled before is acknowledged without a run.
    pub fn inbox() -> Inbox {
        Inbox::default()
    }

    /// A step of your own.
    ///
    /// ```
    /// use dwell::{Next, Step, prelude::*};
    ///
    /// let audit = Step::around("audit", |cx: Cx, next: Next| async move {
    ///     let outcome = next.run().await;
    ///     println!("{}: {outcome:?}", cx.id());
    ///     outcome
    /// });
    /// ```
    pub fn around<F, R>(name: impl Into<Text>, step: F) -> Self
    where
        F: Fn(Cx, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self::from(Kind::Around(Around::new(name.into(), step)))
    }

    /// Its place, if steps are numbered: lower is outer. All steps of a pipeline have a number, or none.
    #[must_use]
    pub fn number(mut self, number: i32) -> Self {
        self.number = Some(number);
        self
    }

    /// What it is called in attributes and texts.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Backstop(Backstop::Defer(_)) => "defer_on_error",
            Kind::Backstop(Backstop::Reject) => "reject_on_error",
            Kind::Backstop(Backstop::Release) => "release_on_error",
            Kind::Retry(_) => "retry",
            Kind::RetryInline(_) => "retry_inline",
            Kind::Timeout(_) => "timeout",
            Kind::CircuitBreaker(_) => "circuit_breaker",
            Kind::RateLimit(_) => "rate_limit",
            Kind::Inbox(_) => "inbox",
            Kind::Around(around) => around.name(),
        }
    }

    pub(super) fn number_given(&self) -> Option<i32> {
        self.number
    }

    pub(super) fn retry_policy(&self) -> Option<RetryOverride> {
        match &self.kind {
            Kind::Retry(retry) => Some(retry.0),
            _ => None,
        }
    }

    pub(super) fn is_inbox(&self) -> bool {
        matches!(self.kind, Kind::Inbox(_))
    }

    /// What runs; `None` for a step that only sets something.
    pub(super) fn layer(&self) -> Option<Box<dyn Layer>> {
        Some(match &self.kind {
            Kind::Backstop(step) => Box::new(*step),
            Kind::Retry(_) => return None,
            Kind::RetryInline(step) => Box::new(*step),
            Kind::Timeout(step) => Box::new(*step),
            Kind::CircuitBreaker(step) => step.layer(),
            Kind::RateLimit(step) => step.layer(),
            Kind::Inbox(step) => Box::new(*step),
            Kind::Around(step) => Box::new(step.clone()),
        })
    }

    /// Why it cannot work, if it cannot.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Timeout(step) if step.0.is_zero() => Some("is zero: every run would time out"),
            Kind::RateLimit(step) => step.problem(),
            Kind::CircuitBreaker(step) => step.problem(),
            Kind::Retry(Retry(policy)) => {
                let is_off = policy.jitter.is_some_and(|jitter| !(0.0..=1.0).contains(&jitter));
                is_off.then_some("has a `jitter` that does not lie between 0 and 1")
            }
            _ => None,
        }
    }
}

impl From<Kind> for Step {
    fn from(kind: Kind) -> Self {
        Self { number: None, kind }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{number}: {:?}", self.kind),
            None => write!(f, "{:?}", self.kind),
        }
    }
}
