//! Time, as a parameter.

mod system;
mod tracked;
mod virtual_time;

pub use system::SystemClock;
pub use virtual_time::VirtualClock;

use crate::{BoxFuture, Moment, Timestamp};
use std::{fmt, time::Duration};

/// Time, as a parameter: nothing else in Dwell knows what time it is.
///
/// `track` and `busy` let a virtual clock know when nobody has anything left to do, so that it may jump to the next
/// timer. On the system clock both do nothing.
///
/// ```
/// use dwell_core::{Clock, SystemClock, VirtualClock};
/// use std::time::Duration;
///
/// /// Written once, for production and for tests.
/// async fn brew(clock: &dyn Clock) -> Duration {
///     let start = clock.elapsed();
///     clock.sleep(Duration::from_secs(180)).await;
///     clock.elapsed() - start
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let clock = VirtualClock::new();
/// let (took, ()) = tokio::join!(brew(&clock), clock.advance(Duration::from_secs(180)));
/// assert_eq!(took, Duration::from_secs(180));
/// # let _ = SystemClock::new();
/// # }
/// ```
pub trait Clock: Send + Sync {
    /// Wall time, as finely as this clock reads it: delays are added to it. May jump.
    fn moment(&self) -> Moment;

    /// Wall time, rounded down: messages that are due by then are due. May jump.
    fn now(&self) -> Timestamp {
        self.moment().floor()
    }

    /// Monotonic time since an arbitrary start, for timeouts and backoff.
    fn elapsed(&self) -> Duration;

    /// Completes once `now() >= time`. Looks at the wall clock at least once a minute, because it may jump.
    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()>;

    /// Completes after this long, whatever the wall clock does.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()>;

    /// Completes after `period`, for periodic work that only looks after things, such as a safety tick. A virtual
    /// clock fires it at most once per jump and never stops for it, so that five days are not millions of ticks.
    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        self.sleep(period)
    }

    /// Wraps a task before it is spawned: while it is runnable, a virtual clock stands still.
    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }

    /// Completes when no tracked task is runnable and no thread is busy: all that can happen now has happened. A clock
    /// that does not track its tasks does not wait.
    fn idle(&self) -> BoxFuture<'static, ()> {
        crate::ready(())
    }

    /// How often a tracked task or thread has begun to work; `None` while one is at work. Two equal answers mean that
    /// nothing has happened in between.
    fn stirrings(&self) -> Option<u64> {
        Some(0)
    }

    /// Held by a thread that works: while it is, a virtual clock stands still.
    fn busy(&self) -> Busy {
        Busy(None)
    }
}

/// Held while a thread works. Dropping it says that the work is done, and that whoever waits for it was woken.
pub struct Busy(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Busy {
    fn until_dropped(done: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(done)))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}
