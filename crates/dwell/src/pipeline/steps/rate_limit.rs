//! A limit of the number of runs per second.

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::{BoxFuture, Due};
use dwell_engine::Verdict;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Maximum time that a run waits in its slot. A run that would wait longer is deferred.
const PATIENCE: Duration = Duration::from_secs(1);

/// See [`Step::rate_limit`](crate::Step::rate_limit).
///
/// ```
/// use dwell::Step;
///
/// // Up to 100 runs at once after a pause, and then 10 per second.
/// let limit = Step::rate_limit(10.0).burst(100);
/// assert_ne!(limit, Step::rate_limit(10.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    per_second: f64,
    burst: u32,
}

impl RateLimit {
    pub(in super::super) fn new(per_second: f64) -> Self {
        Self { per_second, burst: 1 }
    }

    /// Sets the number of runs that can start at once after a pause. Default: 1.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::rate_limit(0.1).burst(3));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// for _ in 0..5 {
    ///     t.send(Call).await?;
    /// }
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<Call>(), 3, "the others wait, at intervals of 10 seconds");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    pub(in super::super) fn problem(&self) -> Option<&'static str> {
        if !self.per_second.is_finite() || self.per_second <= 0.0 {
            return Some("must let more than 0 runs per second through");
        }
        (self.burst == 0).then_some("has a burst of 0, so that nothing would ever run")
    }

    /// Returns the interval between runs, which is also the delay of the first deferred run.
    pub(in super::super) fn interval(self) -> Duration {
        // The maximum of about 11 days prevents an overflow.
        Duration::from_secs_f64((1.0 / self.per_second).min(1e6))
    }

    pub(in super::super) fn layer(self) -> Box<dyn Layer> {
        let interval = self.interval();
        Box::new(Limiter { interval, slack: interval * (self.burst - 1), row: Arc::default() })
    }
}

struct Limiter {
    interval: Duration,
    /// How far before its scheduled time a run may start.
    slack: Duration,
    row: Arc<Mutex<Row>>,
}

/// The schedule of runs, in elapsed time.
#[derive(Default)]
struct Row {
    /// Scheduled time of the next run.
    next: Duration,
    /// Due time of the next deferral. Each deferral has a different due time. A backlog that became
    /// due at one time would be deferred again and again, until it reached the maximum number of
    /// runs.
    back: Duration,
}

impl Limiter {
    /// Schedules a run and returns its wait. `Ok` reserves a position. `Err` does not, because the
    /// wait is too long, and returns the delay of the deferral.
    fn queue(&self, now: Duration) -> Result<Duration, Duration> {
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        let own = row.next.max(now);
        let start = own.saturating_sub(self.slack).max(now);
        if start - now <= PATIENCE {
            row.next = own.saturating_add(self.interval);
            return Ok(start - now);
        }
        let back = row.back.max(start);
        row.back = back.saturating_add(self.interval);
        Err(back - now)
    }
}

impl Layer for Limiter {
    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        match self.queue(cx.clock().elapsed()) {
            Ok(Duration::ZERO) => inner.run(cx),
            Ok(wait) => {
                let cx = cx.clone();
                Box::pin(async move {
                    cx.clock().sleep(wait).await;
                    inner.run(&cx).await
                })
            }
            Err(wait) => dwell_core::ready(Verdict::Defer {
                due: Some(Due::After(wait)),
                reason: Some("the rate limit is exceeded".into()),
            }),
        }
    }
}
