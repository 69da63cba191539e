//! Tries again on the spot.

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::{BoxFuture, RetryPolicy};
use dwell_engine::Verdict;
use std::time::Duration;

/// See [`Step::retry_inline`](crate::Step::retry_inline). Three retries, after 100 ms and then twice as long each time,
/// at most a second.
///
/// ```
/// use dwell::Step;
/// use std::time::Duration;
///
/// let default = Step::retry_inline()
///     .max_retries(3)
///     .base_delay(Duration::from_millis(100))
///     .max_delay(Duration::from_secs(1));
/// assert_eq!(default, Step::retry_inline());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryInline(RetryPolicy);

impl Default for RetryInline {
    fn default() -> Self {
        Self(RetryPolicy {
            max_retries: 3,
            base_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(1),
            jitter: 0.0,
        })
    }
}

impl RetryInline {
    /// How often it is tried again.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::sync::{Arc, atomic::{AtomicU32, Ordering::Relaxed}};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// async fn call(_: Call, State(tries): State<Arc<AtomicU32>>) -> Result<(), &'static str> {
    ///     if tries.fetch_add(1, Relaxed) < 2 { Err("it is away") } else { Ok(()) }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::retry_inline().max_retries(2));
    /// # let tries = Arc::new(AtomicU32::new(0));
    /// # let t = dwell::testing::start(Bus::builder().state(tries).handle(call)).await?;
    /// # t.send(Call).await?;
    /// # t.advance(Duration::from_secs(1)).await;
    /// assert_eq!((t.handled::<Call>(), t.failed::<Call>()), (1, 0), "it was one run, with three tries");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.0.max_retries = max_retries;
        self
    }

    /// Before the first retry; doubled for each further one. Zero is at once.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("it is away") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let quick = Step::retry_inline().max_retries(1).base_delay(Duration::from_millis(20));
    /// let call = Pipeline::new(call).step(quick);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_millis(19)).await;
    /// assert_eq!(t.failed::<Call>(), 0, "it waits for its second try");
    /// t.advance(Duration::from_millis(1)).await;
    /// assert_eq!(t.failed::<Call>(), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = delay;
        self
    }

    /// No pause is longer.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("it is away") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let quick = Step::retry_inline().max_retries(5).max_delay(Duration::from_millis(100));
    /// let call = Pipeline::new(call).step(quick);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_millis(500)).await;
    /// assert_eq!(t.failed::<Call>(), 1, "after five pauses of 100 ms");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = delay;
        self
    }
}

impl RetryInline {
    pub(in super::super) fn problem(&self) -> Option<&'static str> {
        let is_off = self.0.base_delay > self.0.max_delay;
        is_off.then_some("has a `base_delay` above its `max_delay` (a second unless set): set both")
    }
}

impl Layer for RetryInline {
    fn is_lazy(&self) -> bool {
        true
    }

    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let (policy, cx) = (self.0, cx.clone());
        Box::pin(async move {
            let mut failed = 0;
            loop {
                let error = match inner.run(&cx).await {
                    Verdict::Fail(error) if failed < policy.max_retries => error,
                    other => return other,
                };
                let pause = policy.delay(failed, 0.0);
                let message = cx.message();
                tracing::warn!(
                    id = %message.id, kind = %message.kind, topic = cx.topic(), subscription = cx.subscription(),
                    attempt = cx.attempt(), %error, ?pause, "a handler failed: trying again on the spot"
                );
                failed += 1;
                cx.clock().sleep(pause).await;
            }
        })
    }
}
