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
    #[must_use]
    pub fn failures(mut self, failures: u32) -> Self {
        self.failures = failures;
        self
    }

    /// How long it stays open.
    #[must_use]
    pub fn open_for(mut self, open_for: Duration) -> Self {
        self.open_for = open_for;
        self
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
            if let Some(pause) = knock(&state, cx.clock().elapsed()) {
                return Verdict::Defer {
                    due: Some(dwell_core::Due::After(pause)),
                    reason: Some("the circuit breaker is open".into()),
                };
            }
            let mut attempt = Attempt { settings, state, cx, is_over: false };
            let verdict = inner.run(&attempt.cx).await;
            attempt.end(&verdict);
            verdict
        })
    }
}

fn lock(state: &Mutex<Door>) -> MutexGuard<'_, Door> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to stay away; `None` is "come in".
fn knock(state: &Mutex<Door>, now: Duration) -> Option<Duration> {
    let mut door = lock(state);
    let until = door.open_until?;
    if now < until {
        return Some(until - now);
    }
    if std::mem::replace(&mut door.probed, true) { Some(WHILE_PROBED) } else { None }
}

/// A run that was let through. If it is dropped on its way, it has failed.
struct Attempt {
    settings: CircuitBreaker,
    state: Arc<Mutex<Door>>,
    cx: Cx,
    is_over: bool,
}

impl Attempt {
    fn end(&mut self, verdict: &Verdict) {
        self.is_over = true;
        match verdict {
            Verdict::Fail(_) => self.failed(),
            Verdict::Ack { .. } | Verdict::Reject(_) | Verdict::Invalid(_) => {
                *lock(&self.state) = Door::default()
            }
            // It says nothing about the door: whoever comes next may try.
            _ => lock(&self.state).probed = false,
        }
    }

    fn failed(&self) {
        let now = self.cx.clock().elapsed();
        let mut door = lock(&self.state);
        door.failures = door.failures.saturating_add(1);
        let probe_failed = std::mem::take(&mut door.probed);
        // One that was let in before it opened does not keep it open for longer.
        let opens = door.open_until.is_none() && door.failures >= self.settings.failures;
        if opens || probe_failed {
            door.open_until = Some(now.saturating_add(self.settings.open_for));
            drop(door);
            tracing::warn!(
                kind = %self.cx.message().kind, topic = self.cx.topic(), subscription = self.cx.subscription(),
                open_for = ?self.settings.open_for, "a circuit breaker opens: messages are deferred unseen"
            );
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.failed();
        }
    }
}
