//! A clock with a wrong wall time.

use dwell_core::{BoxFuture, Busy, Clock, Moment, Timestamp};
use std::{sync::Arc, time::Duration};

/// The same clock with its wall time shifted by this number of milliseconds.
pub(crate) struct Skewed {
    clock: Arc<dyn Clock>,
    by: i64,
}

impl Skewed {
    pub(crate) fn new(clock: Arc<dyn Clock>, by: i64) -> Self {
        Self { clock, by }
    }
}

impl Clock for Skewed {
    fn moment(&self) -> Moment {
        self.clock.moment().shift(self.by)
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(Timestamp(time.0.saturating_sub(self.by)))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(delay)
    }

    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        self.clock.tick(period)
    }

    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.clock.track(task)
    }

    fn busy(&self) -> Busy {
        self.clock.busy()
    }
}
