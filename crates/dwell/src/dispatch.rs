//! Inline dispatch: a send returns once the messages that it caused are handled.

use dwell_core::{Clock, Envelope, Sent};
use dwell_engine::{Decided, Engine, Observer, Pump, Stage};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::sync::Notify;

/// Runs the handlers of this process until no due message is left.
#[derive(Clone)]
pub(crate) struct Inline {
    clock: Arc<dyn Clock>,
    decided: Arc<Notify>,
}

impl Inline {
    /// Returns whether the clock tracks its tasks. Such a clock has no count of task starts while a
    /// task is busy.
    pub(crate) fn can_drive(clock: &dyn Clock) -> bool {
        let _busy = clock.busy();
        clock.stirrings().is_none()
    }

    /// Creates a dispatcher. The clock must [track its tasks](Self::can_drive).
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, decided: Arc::default() }
    }

    /// Completes when no handler runs and no task is busy. Ignores messages that are not due, and
    /// handlers that exceeded their timeout.
    pub(crate) async fn run_until_idle(&self, engine: &Engine) {
        loop {
            let decided = self.decided.notified();
            self.clock.idle().await;
            let before = self.clock.stirrings();
            let in_flight = engine.monitor().in_flight();
            if in_flight.iter().any(|seen| seen.stage == Stage::Processing && !seen.hung) {
                // A handler waits for something outside of this process. Wait for its outcome, or
                // for the end of all pumps, which abandon it.
                let pumps = engine.monitor().pumps();
                if pumps.iter().all(Pump::has_stopped) {
                    return;
                }
                tokio::select! {
                    () = decided => {}
                    _ = join_all(pumps.iter().map(Pump::stopped)) => {}
                }
            } else if before.is_some() && self.clock.stirrings() == before {
                // No task ran during the check. A handler that ended during it would have sent
                // something.
                return;
            }
        }
    }
}

impl Observer for Inline {
    fn sent(&self, _: &Envelope, _: &Sent) {}

    fn decided(&self, _: &Decided<'_>) {
        self.decided.notify_waiters();
    }
}
