//! Defers messages without a run while a dependency of the handler is unavailable.
//!
//! ```text
//!          consecutive failures          open_for has passed
//!   closed ────────────────────▶ open ────────────────────▶ half open: one message runs
//!      ▲                           ▲                              │
//!      │                           └────────── it fails ──────────┤
//!      └────────────────────────────────────── it succeeds ───────┘
//! ```

use super::{super::chain::Inner, Layer};
use crate::cx::Cx;
use dwell_core::BoxFuture;
use dwell_engine::Verdict;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// See [`Step::circuit_breaker`](crate::Step::circuit_breaker). By default, it opens after 5
/// consecutive failures, for 30 seconds. Place it inside of a backstop, which would otherwise hide
/// the failures.
///
/// ```
/// use dwell::Step;
/// use std::time::Duration;
///
/// let default = Step::circuit_breaker().failures(5).open_for(Duration::from_secs(30));
/// assert_eq!(default, Step::circuit_breaker());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CircuitBreaker {
    failures: u32,
    open_for: Duration,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { failures: 5, open_for: Duration::from_secs(30) }
    }
}

impl CircuitBreaker {
    /// Sets the number of consecutive failures that open the circuit breaker.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::circuit_breaker().failures(2));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// for _ in 0..5 {
    ///     t.send(Call).await?;
    /// }
    /// t.run_until_idle().await;
    /// assert_eq!(
    ///     (t.failed::<Call>(), t.deferred::<Call>()),
    ///     (2, 3),
    ///     "deferred after two failures"
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn failures(mut self, failures: u32) -> Self {
        self.failures = failures;
        self
    }

    /// Sets how long the circuit breaker stays open.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("unavailable") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let breaker = Step::circuit_breaker().failures(1).open_for(Duration::from_secs(3600));
    /// let call = Pipeline::new(call).step(breaker);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// t.send(Call).await?;
    /// t.advance(Duration::from_secs(1800)).await;
    /// assert_eq!(t.failed::<Call>(), 1, "no run for an hour");
    /// t.advance(Duration::from_secs(3600)).await;
    /// assert_eq!(t.failed::<Call>(), 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn open_for(mut self, open_for: Duration) -> Self {
        self.open_for = open_for;
        self
    }

    pub(in super::super) fn longest_delay(&self) -> Duration {
        self.open_for.max(WHILE_PROBED)
    }

    pub(in super::super) fn problem(&self) -> Option<&'static str> {
        if self.failures == 0 {
            return Some("opens after 0 failures, so that nothing would ever run");
        }
        self.open_for.is_zero().then_some("has an `open_for` of zero, so that it would never defer")
    }

    pub(in super::super) fn layer(self) -> Box<dyn Layer> {
        Box::new(Breaker { settings: self, state: Arc::default() })
    }
}

/// Delay of other messages while one message runs as a test.
const WHILE_PROBED: Duration = Duration::from_secs(1);

struct Breaker {
    settings: CircuitBreaker,
    state: Arc<Mutex<Door>>,
}

#[derive(Default)]
struct Door {
    /// Number of consecutive failures.
    failures: u32,
    /// End of the open state, in elapsed time. Afterwards, one message may run.
    open_until: Option<Duration>,
    probed: bool,
}

impl Layer for Breaker {
    fn run(&self, cx: &Cx, inner: Inner) -> BoxFuture<'static, Verdict> {
        let (settings, state, cx) = (self.settings, self.state.clone(), cx.clone());
        Box::pin(async move {
            let is_probe = match knock(&state, cx.clock().elapsed()) {
                Ok(is_probe) => is_probe,
                Err(pause) => {
                    return Verdict::Defer {
                        due: Some(dwell_core::Due::After(pause)),
                        reason: Some("the circuit breaker is open".into()),
                    };
                }
            };
            let mut attempt = Attempt { settings, state, cx, is_probe, is_over: false };
            let verdict = inner.run(&attempt.cx).await;
            attempt.end(&verdict);
            verdict
        })
    }
}

fn lock(state: &Mutex<Door>) -> MutexGuard<'_, Door> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Admits a run. Returns whether it is a test of the half-open state, or the delay after which to
/// retry.
fn knock(state: &Mutex<Door>, now: Duration) -> Result<bool, Duration> {
    let mut door = lock(state);
    let Some(until) = door.open_until else { return Ok(false) };
    if now < until {
        return Err(until - now);
    }
    if std::mem::replace(&mut door.probed, true) { Err(WHILE_PROBED) } else { Ok(true) }
}

/// An admitted run. Dropping it before it ends counts as a failure.
struct Attempt {
    settings: CircuitBreaker,
    state: Arc<Mutex<Door>>,
    cx: Cx,
    is_probe: bool,
    is_over: bool,
}

impl Attempt {
    fn end(&mut self, verdict: &Verdict) {
        self.is_over = true;
        match verdict {
            Verdict::Fail(_) => self.failed(),
            Verdict::Ack { .. } | Verdict::Reject(_) | Verdict::Invalid(_) => {
                if let Some(mut door) = self.door() {
                    *door = Door::default();
                }
            }
            // The outcome is neither a success nor a failure, so the next message may test.
            _ => {
                if let Some(mut door) = self.door() {
                    door.probed = false;
                }
            }
        }
    }

    fn failed(&self) {
        let now = self.cx.clock().elapsed();
        let Some(mut door) = self.door() else { return };
        door.failures = door.failures.saturating_add(1);
        door.probed = false;
        if self.is_probe || door.failures >= self.settings.failures {
            door.open_until = Some(now.saturating_add(self.settings.open_for));
            drop(door);
            tracing::warn!(
                id = %self.cx.id(), kind = %self.cx.message().kind, topic = self.cx.topic(),
                subscription = self.cx.subscription(), attempt = self.cx.attempt(), open_for = ?self.settings.open_for,
                "circuit breaker opened; deferring messages without a run"
            );
        }
    }

    /// Returns the state if this run may change it. While the circuit breaker is open, only the
    /// test may; other runs were admitted before it opened.
    fn door(&self) -> Option<MutexGuard<'_, Door>> {
        Some(lock(&self.state)).filter(|door| self.is_probe || door.open_until.is_none())
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.failed();
        }
    }
}
