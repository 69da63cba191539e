//! Stops knocking at a door that nobody opens.
//!
//! ```text
//!            failures in a row            open_for is over
//!   closed ────────────────────▶ open ────────────────────▶ half open: one message tries
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

/// See [`Step::circuit_breaker`](crate::Step::circuit_breaker). Opens after 5 failures in a row, for 30 seconds. Put it
/// inside of a backstop, which would hide the failures from it.
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
    /// So many failures in a row open it.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("it is away") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let call = Pipeline::new(call).step(Step::circuit_breaker().failures(2));
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// for _ in 0..5 {
    ///     t.send(Call).await?;
    /// }
    /// t.run_until_idle().await;
    /// assert_eq!((t.failed::<Call>(), t.deferred::<Call>()), (2, 3), "after two failures, nobody tries");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn failures(mut self, failures: u32) -> Self {
        self.failures = failures;
        self
    }

    /// How long it stays open.
    ///
    /// ```
    /// # use dwell::{Pipeline, Step, prelude::*};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "call")]
    /// # struct Call;
    /// # async fn call(_: Call) -> Result<(), &'static str> { Err("it is away") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let breaker = Step::circuit_breaker().failures(1).open_for(Duration::from_secs(3600));
    /// let call = Pipeline::new(call).step(breaker);
    /// # let t = dwell::testing::start(Bus::builder().handle(call)).await?;
    /// t.send(Call).await?;
    /// t.advance(Duration::from_secs(1800)).await;
    /// assert_eq!(t.failed::<Call>(), 1, "nobody tries for an hour");
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
        self.open_for.is_zero().then_some("is open for no time at all, so that it would do nothing")
    }

    pub(in super::super) fn layer(self) -> Box<dyn Layer> {
        Box::new(Breaker { settings: self, state: Arc::default() })
    }
}

/// While somebody tries, the others wait so long.
const WHILE_PROBED: Duration = Duration::from_secs(1);

struct Breaker {
    settings: CircuitBreaker,
    state: Arc<Mutex<Door>>,
}

#[derive(Default)]
struct Door {
    /// In a row.
    failures: u32,
    /// Until then, in elapsed time; from then on somebody may try.
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

/// Whether the one who comes in does so to try; or how long to stay away.
fn knock(state: &Mutex<Door>, now: Duration) -> Result<bool, Duration> {
    let mut door = lock(state);
    let Some(until) = door.open_until else { return Ok(false) };
    if now < until {
        return Err(until - now);
    }
    if std::mem::replace(&mut door.probed, true) { Err(WHILE_PROBED) } else { Ok(true) }
}

/// A run that was let through. If it is dropped on its way, it has failed.
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
            // It says nothing about the door: whoever comes next may try.
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
                subscription = self.cx.subscription(), attempt = self.cx.attempt(), open_for = ?self.settings.open_for, "a circuit breaker opens: messages are deferred unseen"
            );
        }
    }

    /// The door, if this run has a say: while it is open, only the one who tries has. Others were let in before.
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
