//! Retries a handler without returning the message to the broker.

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::{BoxFuture, RetryPolicy};
use dwell_engine::Verdict;
use std::time::Duration;

/// See [`Step::retry_inline`](crate::Step::retry_inline). By default, it retries three times. The
/// first pause is 100 ms, and each further one is twice as long, up to one second.
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
    /// Sets the maximum number of retries.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::sync::{Arc, atomic::{AtomicU32, Ordering::Relaxed}};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// async fn call(_: Call, State(tries): State<Arc<AtomicU32>>) -> Result<(), &'static str> {
    ///     if tries.fetch_add(1, Relaxed) < 2 { Err("unavailable") } else { Ok(()) }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::retry_inline().max_retries(2));
    /// # let tries = Arc::new(AtomicU32::new(0));
    /// # let t = dwell::testing::start(Bus::builder().state(tries).handle(call)).await?;
    /// # t.send(Call).await?;
    /// # t.advance(Duration::from_secs(1)).await;
    /// assert_eq!(
    ///     (t.handled::<Call>(), t.failed::<Call>()),
    ///     (1, 0),
    ///     "one run with three attempts"
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.0.max_retries = max_retries;
        self
    }

    /// Sets the pause before the first retry, which doubles for each further one. Zero retries at
    /// once.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let quick = Step::retry_inline().max_retries(1).base_delay(Duration::from_millis(20));
    /// let call = Pipeline::new(call).step(quick);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_millis(19)).await;
    /// assert_eq!(t.failed::<Call>(), 0, "the second attempt is pending");
    /// t.advance(Duration::from_millis(1)).await;
    /// assert_eq!(t.failed::<Call>(), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = delay;
        self
    }

    /// Sets the maximum pause.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
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
        is_off.then_some("has a `base_delay` above its `max_delay` (default: one second): set both")
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
                    attempt = cx.attempt(), %error, ?pause, "handler failed; retrying inline"
                );
                failed += 1;
                cx.clock().sleep(pause).await;
            }
        })
    }
}
