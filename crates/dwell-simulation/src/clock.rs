//! Clock of one process: shared monotonic time, and a wall clock that may be wrong.

use crate::{
    crew::Crew,
    life::Life,
    scene::{as_request, current_request},
};
use dwell_core::{BoxFuture, Busy, Clock, Moment, Timestamp, VirtualClock};
use std::{sync::Arc, time::Duration};

/// Clock of a process. All tasks spawned on it end with the process.
pub(crate) struct ProcessClock {
    pub(crate) clock: VirtualClock,
    pub(crate) crew: Arc<Crew>,
    pub(crate) life: Arc<Life>,
    /// Offset of its wall clock from the broker's, in milliseconds.
    pub(crate) skew: i64,
}

impl Clock for ProcessClock {
    fn moment(&self) -> Moment {
        self.clock.moment().shift(self.skew)
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(Timestamp(time.0.saturating_sub(self.skew)))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(delay)
    }

    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        self.clock.tick(period)
    }

    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        // A task that finishes the send of a request belongs to that request.
        let task = match current_request() {
            Some(request) => Box::pin(as_request(request, task)),
            None => task,
        };
        self.clock.track(self.crew.take_on(self.life.task(task)))
    }

    fn busy(&self) -> Busy {
        self.clock.busy()
    }
}
