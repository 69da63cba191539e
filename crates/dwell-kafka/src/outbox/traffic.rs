//! Number of records that a producer has in flight, and when the broker last confirmed one.

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
    /// When the first of them was handed over, or when one was confirmed since.
    moved: AtomicU64,
    /// When a record was last confirmed, or else when the producer was opened.
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

    /// Notes that a record is about to be handed over.
    pub(super) fn departs(&self) {
        if self.on_their_way.fetch_add(1, SeqCst) == 0 {
            self.moved.store(self.now(), SeqCst);
        }
    }

    /// Notes that a record is no longer in flight.
    pub(super) fn ends(&self, is_confirmed: bool) {
        if is_confirmed {
            let now = self.now();
            self.moved.store(now, SeqCst);
            self.confirmed.store(now, SeqCst);
        }
        self.on_their_way.fetch_sub(1, SeqCst);
    }

    /// Returns how long no record was confirmed while some are in flight.
    pub(super) fn silence(&self) -> Duration {
        if self.on_their_way.load(SeqCst) == 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(self.now().saturating_sub(self.moved.load(SeqCst)))
    }

    /// Returns how long no record was confirmed, whether or not some are in flight.
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
    async fn silence_counts_while_records_are_in_flight_and_unconfirmed() {
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
        assert_eq!(traffic.silence(), moment, "a failed record does not show that the broker works");
        traffic.ends(false);
        assert_eq!((traffic.silence(), traffic.unconfirmed()), (Duration::ZERO, moment));
    }
}
