//! Waiting receivers of a subscription.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, futures::Notified};

/// Waiting receivers of a subscription. They are counted, so that a busy subscription sends no
/// signals.
#[derive(Default)]
pub(super) struct Receivers {
    told: Notify,
    waiting: AtomicUsize,
}

/// A waiting receiver, until it is dropped.
pub(super) struct Wait<'a>(&'a Receivers);

impl Receivers {
    /// Registers a waiting receiver. Call it *before* the look that finds nothing. Looks and
    /// signals both happen under the lock, so no message is missed.
    pub(super) fn wait(&self) -> Wait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Wait(self)
    }

    /// Whether any receiver waits.
    pub(super) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wakes one receiver, which wakes the next one if it leaves messages.
    pub(super) fn tell_one(&self) {
        self.told.notify_one();
    }

    /// Wakes all receivers.
    pub(super) fn tell_all(&self) {
        self.told.notify_waiters();
    }
}

impl<'a> Wait<'a> {
    /// Completes with a signal. If this is dropped, an unused signal is passed on.
    pub(super) fn told(&self) -> Notified<'a> {
        self.0.told.notified()
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
