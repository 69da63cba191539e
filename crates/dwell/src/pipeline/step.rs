//! Steps of a pipeline as values, which can be compared.

use super::{
    Next,
    steps::{
        Around, Backstop, CircuitBreaker, DeferOnError, Inbox, Layer, RateLimit, Retry, RetryInline, Timeout,
    },
};
use crate::{Cx, Failure};
use dwell_core::{RetryOverride, Text};
use std::{fmt, time::Duration};

/// A step around a handler. The functions of this type create steps, and the methods of the
/// returned types set their options.
///
/// ```
/// use dwell::Step;
/// use std::time::Duration;
///
/// let step = Step::from(Step::defer_on_error().delay(Duration::from_secs(30)));
/// assert_eq!(step.name(), "defer_on_error");
/// assert_ne!(step, Step::reject_on_error());
/// ```
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
    /// Turns an error or a panic into a deferral. The message is delivered again later, and this
    /// does not count as a retry. Without a delay, the `defer_delay` of the subscription applies;
    /// zero redelivers at once.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "mail.send")]
    /// # struct SendMail;
    /// async fn send_mail(_: SendMail) -> Result<(), &'static str> {
    ///     Err("the mail server is down")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline =
    ///     Pipeline::new(send_mail).step(Step::defer_on_error().delay(Duration::from_secs(30)));
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await?;
    /// # t.send(SendMail).await?;
    /// t.advance(Duration::from_secs(60)).await;
    /// assert_eq!((t.deferred::<SendMail>(), t.failed::<SendMail>()), (3, 0));
    /// # Ok(()) }
    /// ```
    pub fn defer_on_error() -> DeferOnError {
        DeferOnError::default()
    }

    /// Turns an error or a panic into a rejection. The message becomes a dead letter at once.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// async fn charge(_: Charge) -> Result<(), &'static str> { Err("the connection was lost") }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline = Pipeline::new(charge).step(Step::reject_on_error()); // may have charged
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await?;
    /// # t.send(Charge).await?;
    /// # t.run_until_idle().await;
    /// assert_eq!((t.dead::<Charge>(), t.failed::<Charge>()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn reject_on_error() -> Self {
        Self::from(Kind::Backstop(Backstop::Reject))
    }

    /// Turns an error or a panic into a release. The message is redelivered unchanged, and the run
    /// is not counted.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "print")]
    /// # struct Print;
    /// async fn print(_: Print, cx: Cx) -> Result<(), &'static str> {
    ///     assert_eq!(cx.attempt(), 1, "released runs are not counted");
    ///     Err("this printer is broken")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline = Pipeline::new(print).step(Step::release_on_error());
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await?;
    /// # t.send(Print).await?;
    /// # t.advance(Duration::from_secs(10)).await;
    /// # assert!(t.errors::<Print>().len() > 5);
    /// # Ok(()) }
    /// ```
    pub fn release_on_error() -> Self {
        Self::from(Kind::Backstop(Backstop::Release))
    }

    /// Sets the durable retry policy of this message type in this subscription. Options that are
    /// not set are those of the subscription. While a message waits for its retry, it occupies no
    /// slot and survives a restart.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "mail.send")]
    /// # struct SendMail;
    /// # async fn send_mail(_: SendMail) -> Result<(), &'static str> {
    /// #     Err("the mail server is down")
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let hour = Duration::from_secs(3600);
    /// let retry =
    ///     Step::retry().max_retries(20).base_delay(Duration::from_secs(1)).max_delay(hour);
    /// let wiring = Bus::builder().handle(Pipeline::new(send_mail).step(retry));
    /// # let t = dwell::testing::start(wiring).await?;
    /// # t.send(SendMail).await?;
    /// t.advance(hour * 24).await;
    /// assert_eq!((t.failed::<SendMail>(), t.dead::<SendMail>()), (20, 1));
    /// # Ok(()) }
    /// ```
    pub fn retry() -> Retry {
        Retry::default()
    }

    /// Retries the handler at once, or after short pauses, while the message occupies its slot. Use
    /// it for errors that last a moment.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::{sync::{Arc, atomic::{AtomicU32, Ordering}}, time::Duration};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "rows.update")]
    /// # struct Update;
    /// type Tries = State<Arc<AtomicU32>>;
    ///
    /// async fn update(_: Update, State(tries): Tries) -> Result<(), &'static str> {
    ///     if tries.fetch_add(1, Ordering::Relaxed) < 2 {
    ///         Err("the row is locked")
    ///     } else {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline = Pipeline::new(update).step(Step::retry_inline());
    /// # let t = dwell::testing::start(
    /// #     Bus::builder().state(Arc::new(AtomicU32::new(0))).handle(pipeline),
    /// # )
    /// # .await?;
    /// # t.send(Update).await?;
    /// t.advance(Duration::from_millis(300)).await;
    /// assert_eq!(
    ///     (t.handled::<Update>(), t.failed::<Update>()),
    ///     (1, 0),
    ///     "the third attempt of one run"
    /// );
    /// # Ok(()) }
    /// ```
    pub fn retry_inline() -> RetryInline {
        RetryInline::default()
    }

    /// Limits the duration of the inner part. At the timeout, it is dropped and counts as failed.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "mail.send")]
    /// # struct SendMail;
    /// async fn send_mail(_: SendMail, cx: Cx) {
    ///     cx.clock().sleep(Duration::from_secs(25)).await;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline = Pipeline::new(send_mail).step(Step::timeout(Duration::from_secs(10)));
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await?;
    /// # t.send(SendMail).await?;
    /// t.advance(Duration::from_secs(10)).await;
    /// assert_eq!(t.failed::<SendMail>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn timeout(after: Duration) -> Self {
        Self::from(Kind::Timeout(Timeout(after)))
    }

    /// Defers messages without a run for some time after a number of consecutive failures. Then one
    /// message runs as a test. Each deferral counts as a run for the `max_runs` of the
    /// subscription: with 1000 runs and 30 seconds each, an outage of more than eight hours would
    /// turn messages into dead letters.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "mail.send")]
    /// # struct SendMail { to: u32 }
    /// async fn send_mail(_: SendMail) -> Result<(), &'static str> {
    ///     Err("the mail server is down")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let breaker = Step::circuit_breaker().failures(3).open_for(Duration::from_secs(60));
    /// # let t =
    /// #     dwell::testing::start(Bus::builder().handle(Pipeline::new(send_mail).step(breaker)))
    /// #         .await?;
    /// for to in 0..10 {
    ///     t.send(SendMail { to }).await?;
    /// }
    /// t.run_until_idle().await;
    /// assert_eq!(
    ///     (t.failed::<SendMail>(), t.deferred::<SendMail>()),
    ///     (3, 7),
    ///     "seven were deferred without a run"
    /// );
    /// # Ok(()) }
    /// ```
    pub fn circuit_breaker() -> CircuitBreaker {
        CircuitBreaker::default()
    }

    /// Limits the number of runs per second. A run waits for up to a second, and is deferred if its
    /// turn comes later. The `rate` of the subscription does this for all its handlers together,
    /// and without occupying a slot.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "mail.send")]
    /// # struct SendMail { to: u32 }
    /// # async fn send_mail(_: SendMail) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let pipeline = Pipeline::new(send_mail).step(Step::rate_limit(0.5)); // every 2 seconds
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await?;
    /// for to in 0..10 {
    ///     t.send(SendMail { to }).await?;
    /// }
    /// t.advance(Duration::from_secs(9)).await;
    /// assert_eq!(t.handled::<SendMail>(), 5);
    /// # Ok(()) }
    /// ```
    pub fn rate_limit(per_second: f64) -> RateLimit {
        RateLimit::new(per_second)
    }

    /// Acknowledges a message without a run if this subscription has already handled it. Not
    /// available for job handlers, because the result of the job would be lost.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*, raw::{Address, Message}};
    /// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// async fn charge(_: Charge, State(charged): State<Arc<AtomicU32>>) {
    ///     charged.fetch_add(1, Ordering::Relaxed);
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let charged = Arc::new(AtomicU32::new(0));
    /// let pipeline = Pipeline::new(charge).step(Step::inbox());
    /// # let t =
    /// #     dwell::testing::start(Bus::builder().state(charged.clone()).handle(pipeline)).await?;
    /// for _ in 0..2 {
    ///     // Simulates a broker that delivers the same message twice.
    ///     t.post(
    ///         Address::topic("payments.charge"),
    ///         Message::new("charge-42", "payments.charge", "null"),
    ///     )
    ///     .await?;
    /// }
    /// t.run_until_idle().await;
    /// assert_eq!(charged.load(Ordering::Relaxed), 1);
    /// # Ok(()) }
    /// ```
    pub fn inbox() -> Inbox {
        Inbox::default()
    }

    /// Creates a custom step.
    ///
    /// ```
    /// use dwell::{Next, Pipeline, Step, prelude::*};
    ///
    /// let stolen = Step::around("stolen", |cx: Cx, next: Next| async move {
    ///     match next.run().await {
    ///         Err(failure) if failure.to_string().contains("stolen") => {
    ///             Err(Failure::reject("reported to the police"))
    ///         }
    ///         outcome => outcome,
    ///     }
    /// });
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let pipeline =
    ///     Pipeline::new(async |_: Charge| Err::<(), _>("the card is stolen")).step(stolen);
    /// # let t = dwell::testing::start(Bus::builder().handle(pipeline)).await.unwrap();
    /// # t.send(Charge).await.unwrap();
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.errors::<Charge>(), ["reported to the police"]);
    /// # });
    /// ```
    pub fn around<F, R>(name: impl Into<Text>, step: F) -> Self
    where
        F: Fn(Cx, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self::from(Kind::Around(Around::new(name.into(), step)))
    }

    /// Sets the position of the step: lower numbers are further out. Number all steps of a pipeline
    /// or none.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let timeout = || Step::timeout(Duration::from_secs(1));
    /// let pipeline = Pipeline::new(async |_: Greet| ())
    ///     .step(timeout().number(2))
    ///     .step(Step::reject_on_error().number(1)); // the outermost
    /// let bus = Bus::builder().handle(pipeline).start("memory://").await?;
    /// # bus.shutdown().await?;
    ///
    /// let pipeline =
    ///     Pipeline::new(async |_: Greet| ()).step(timeout().number(2)).step(Step::inbox());
    /// let refused = Bus::builder().handle(pipeline).start("memory://").await.unwrap_err();
    /// assert!(refused.to_string().contains("number all of them or none"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn number(mut self, number: i32) -> Self {
        self.number = Some(number);
        self
    }

    /// Returns the name of the step, as in its attribute.
    ///
    /// ```
    /// use dwell::Step;
    ///
    /// assert_eq!(Step::reject_on_error().name(), "reject_on_error");
    /// ```
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

    /// Returns the longest delay that the step itself can request.
    pub(super) fn longest_delay(&self) -> Duration {
        match &self.kind {
            Kind::Backstop(Backstop::Defer(step)) => step.own_delay().unwrap_or_default(),
            Kind::CircuitBreaker(step) => step.longest_delay(),
            Kind::RateLimit(step) => step.interval(),
            _ => Duration::ZERO,
        }
    }

    /// Returns the layer of the step, or `None` if it only changes settings.
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

    /// Returns what is wrong with the options of the step, if anything.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::RetryInline(step) => step.problem(),
            Kind::Timeout(step) if step.0.is_zero() => Some("is zero: every run would time out"),
            Kind::RateLimit(step) => step.problem(),
            Kind::CircuitBreaker(step) => step.problem(),
            Kind::Retry(Retry(policy)) => {
                let is_off = policy.jitter.is_some_and(|jitter| !(0.0..=1.0).contains(&jitter));
                is_off.then_some("has a `jitter` outside of 0 to 1")
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
