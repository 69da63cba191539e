//! Inline dispatch: a send returns when what it caused has been handled.

use dwell_core::{Clock, Envelope, Sent};
use dwell_engine::{Decided, Engine, Observer, Pump, Stage};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::sync::Notify;

/// Drives the handlers of this process until nothing is left that is due now.
#[derive(Clone)]
pub(crate) struct Inline {
    clock: Arc<dyn Clock>,
    decided: Arc<Notify>,
}

impl Inline {
    /// Whether a clock tracks its tasks: it then knows that somebody is busy.
    pub(crate) fn can_drive(clock: &dyn Clock) -> bool {
        let _busy = clock.busy();
        clock.stirrings().is_none()
    }

    /// The clock must [track its tasks](Self::can_drive).
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, decided: Arc::default() }
    }

    /// Completes when no handler runs and nobody has anything to do. What waits for its time is left alone, and so is
    /// what was abandoned.
    pub(crate) async fn run_until_idle(&self, engine: &Engine) {
        loop {
            let decided = self.decided.notified();
            self.clock.idle().await;
            let before = self.clock.stirrings();
            let in_flight = engine.monitor().in_flight();
            if in_flight.iter().any(|seen| seen.stage == Stage::Processing && !seen.hung) {
                // A handler waits for something outside; unless all stops, and it is given up.
                let pumps = engine.monitor().pumps();
                if pumps.iter().all(Pump::has_stopped) {
                    return;
                }
                tokio::select! {
                    () = decided => {}
                    _ = join_all(pumps.iter().map(Pump::stopped)) => {}
                }
            } else if before.is_some() && self.clock.stirrings() == before {
                // Nobody has moved while we looked: a handler that was done just then would have sent something.
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
