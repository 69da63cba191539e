//! The durable retry policy. It is not run: it becomes part of the subscription's settings.

use dwell_core::RetryOverride;
use std::time::Duration;

/// See [`Step::retry`](crate::Step::retry). What is not set is the subscription's.
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
    /// Failures that are tried again: n retries are n + 1 runs.
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.0.max_retries = Some(max_retries);
        self
    }

    /// Before the first retry; doubled for each further one.
    #[must_use]
    pub fn base_delay(mut self, delay: Duration) -> Self {
        self.0.base_delay = Some(delay);
        self
    }

    /// No delay is longer, jitter included.
    #[must_use]
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.0.max_delay = Some(delay);
        self
    }

    /// The share of the delay that is added or taken away at random, from 0 to 1.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.0.jitter = Some(jitter);
        self
    }
}
