//! How many records a producer has on their way, and when the broker last confirmed one.

use dwell_core::Clock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

/// The records of one producer. Times are in milliseconds.
pub(super) struct Traffic {
    clock: Arc<dyn Clock>,
    on_their_way: AtomicU64,
    /// When the first of them was handed over, or one was confirmed since.
    moved: AtomicU64,
    /// When one was last confirmed, or the producer was opened.
    confirmed: AtomicU64,
}

impl Traffic {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let traffic = Self {
            clock,
            on_their_way: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
        };
        traffic.confirmed.store(traffic.now(), SeqCst);
        traffic
    }

    /// One is about to be handed over.
    pub(super) fn departs(&self) {
        if self.on_their_way.fetch_add(1, SeqCst) == 0 {
            self.moved.store(self.now(), SeqCst);
        }
    }

    /// One is no longer on its way.
    pub(super) fn ends(&self, is_confirmed: bool) {
        if is_confirmed {
            let now = self.now();
            self.moved.store(now, SeqCst);
            self.confirmed.store(now, SeqCst);
        }
        self.on_their_way.fetch_sub(1, SeqCst);
    }

    /// How long nothing was confirmed while something is on its way.
    pub(super) fn silence(&self) -> Duration {
        if self.on_their_way.load(SeqCst) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now().saturating_sub(self.moved.load(SeqCst)))
    }

    /// How long nothing was confirmed, whether or not something is on its way.
    pub(super) fn unconfirmed(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.confirmed.load(SeqCst)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::VirtualClock;

    #[tokio::test]
    async fn a_producer_is_silent_while_something_is_on_its_way_and_nothing_is_confirmed() {
        let clock = VirtualClock::new();
        let traffic = Traffic::new(Arc::new(clock.clone()));
        let moment = Duration::from_millis(70);
        clock.advance(moment).await;
        assert_eq!(traffic.silence(), Duration::ZERO);
        traffic.departs();
        traffic.departs();
        clock.advance(moment).await;
        assert_eq!(traffic.silence(), moment);
        traffic.ends(true);
        assert_eq!((traffic.silence(), traffic.unconfirmed()), (Duration::ZERO, Duration::ZERO));
        clock.advance(moment).await;
        traffic.departs();
        traffic.ends(false);
        assert_eq!(traffic.silence(), moment, "a record that failed is no sign of the broker");
        traffic.ends(false);
        assert_eq!((traffic.silence(), traffic.unconfirmed()), (Duration::ZERO, moment));
    }
}
