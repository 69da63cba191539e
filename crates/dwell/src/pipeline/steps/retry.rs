//! The durable retry policy. It has no layer, but becomes part of the settings of the subscription.

use dwell_core::RetryOverride;
use std::time::Duration;

/// See [`Step::retry`](crate::Step::retry). Options that are not set are those of the subscription.
///
/// ```
/// use dwell::Step;
/// use std::time::Duration;
///
/// let retry = Step::retry()
///     .max_retries(20)
///     .base_delay(Duration::from_secs(1))
///     .max_delay(Duration::from_secs(3600))
///     .jitter(0.5);
/// assert_eq!(Step::from(retry).name(), "retry");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Retry(pub(in super::super) RetryOverride);

impl Retry {
    /// Sets the maximum number of retries: n retries are n + 1 runs.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::retry().max_retries(2));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// # t.advance(Duration::from_secs(3600)).await;
    /// assert_eq!(
    ///     (t.failed::<Call>(), t.dead::<Call>()),
    ///     (2, 1),
    ///     "a dead letter after three runs"
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.0.max_retries = Some(max_retries);
        self
    }

    /// Sets the delay before the first retry, which doubles for each further one.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call =
    ///     Pipeline::new(call).step(Step::retry().base_delay(Duration::from_secs(10)).jitter(0.0));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_secs(10 + 20)).await;
    /// assert_eq!(t.failed::<Call>(), 3, "at once, after 10 seconds, and after another 20");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = Some(delay);
        self
    }

    /// Sets the maximum delay, including jitter.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let second = Duration::from_secs(1);
    /// let retry = Step::retry().max_retries(100).base_delay(second).max_delay(second).jitter(0.0);
    /// let call = Pipeline::new(call).step(retry);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(second * 10).await;
    /// assert_eq!(t.failed::<Call>(), 11, "at once, and then every second");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = Some(delay);
        self
    }

    /// Sets the share of the delay that is added or subtracted at random, from 0 to 1.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call =
    ///     Pipeline::new(call).step(Step::retry().base_delay(Duration::from_secs(20)).jitter(0.5));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// # t.send(Call).await?;
    /// t.advance(Duration::from_secs(9)).await;
    /// assert_eq!(t.failed::<Call>(), 1, "the next run starts after 10 to 30 seconds");
    /// t.advance(Duration::from_secs(21)).await;
    /// assert!(t.failed::<Call>() >= 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.0.jitter = Some(jitter);
        self
    }
}
