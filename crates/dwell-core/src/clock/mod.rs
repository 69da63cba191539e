//! Time as a parameter.

mod system;
mod tracked;
mod virtual_time;

pub use system::SystemClock;
pub use virtual_time::VirtualClock;

use crate::{BoxFuture, Moment, Timestamp};
use std::{fmt, time::Duration};

/// The source of time. No other part of Dwell reads a clock.
///
/// `track` and `busy` tell a virtual clock when no task and no thread has work left, so that it may
/// jump to the next timer. On the system clock both do nothing.
///
/// ```
/// use dwell_core::{Clock, SystemClock, VirtualClock};
/// use std::time::Duration;
///
/// /// Written once, for production and tests.
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
    /// Returns the wall time, in the resolution of the clock. Delays are added to it. It may jump.
    fn moment(&self) -> Moment;

    /// Returns the wall time, rounded down. Messages with this due time, or an earlier one, are
    /// due. It may jump.
    fn now(&self) -> Timestamp {
        self.moment().floor()
    }

    /// Returns the monotonic time since an arbitrary start, for timeouts and backoff.
    fn elapsed(&self) -> Duration;

    /// Completes once `now() >= time`. Reads the wall clock at least once a minute, because it may
    /// jump.
    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()>;

    /// Completes after `delay`, independently of the wall clock.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()>;

    /// Completes after `period`. For periodic maintenance, such as a safety check. A virtual clock
    /// fires it at most once per jump and never stops for it, so that advancing five days does not
    /// cost millions of ticks.
    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        self.sleep(period)
    }

    /// Wraps a task before it is spawned. A virtual clock stands still while the task is runnable.
    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }

    /// Completes when no tracked task is runnable and no thread is busy. A clock that does not
    /// track its tasks completes immediately.
    fn idle(&self) -> BoxFuture<'static, ()> {
        crate::ready(())
    }

    /// Returns how often a tracked task or thread has started to work, or `None` while one is
    /// working. Two equal values mean that nothing has happened in between.
    fn stirrings(&self) -> Option<u64> {
        Some(0)
    }

    /// Marks the current thread as busy until the result is dropped. A virtual clock stands still
    /// meanwhile.
    fn busy(&self) -> Busy {
        Busy(None)
    }
}

/// Marks a thread as busy. Drop it when the work is done and the tasks that wait for it were woken.
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
