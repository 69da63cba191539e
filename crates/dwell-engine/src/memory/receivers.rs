//! Those who wait for a message of one subscription.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, futures::Notified};

/// Those who wait for a message of one subscription. Counted, so that a busy subscription pays for no signals.
#[derive(Default)]
pub(super) struct Receivers {
    told: Notify,
    waiting: AtomicUsize,
}

/// One who waits, until dropped.
pub(super) struct Wait<'a>(&'a Receivers);

impl Receivers {
    /// From now on one more waits. To be asked for *before* the look that finds nothing: both are under the lock that
    /// whoever signals holds, so that no message falls in between.
    pub(super) fn wait(&self) -> Wait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Wait(self)
    }

    /// Whether anybody waits.
    pub(super) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes one, who wakes the next if it leaves something.
    pub(super) fn tell_one(&self) {
        self.told.notify_one();
    }

    /// Wakes everyone.
    pub(super) fn tell_all(&self) {
        self.told.notify_waiters();
    }
}

impl<'a> Wait<'a> {
    /// Completes when told. A signal that came and was not needed is passed on when this is dropped.
    pub(super) fn told(&self) -> Notified<'a> {
        self.0.told.notified()
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
