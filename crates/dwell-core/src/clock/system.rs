//! The system clock.
#![expect(clippy::disallowed_methods, reason = "the only place that reads real time")]

use super::{Busy, tracked::Activity};
use crate::{BoxFuture, Clock, Moment, Timestamp};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// Interval at which a sleep reads the wall clock again, because it may have jumped.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Clock with the wall time of the operating system and the timers of tokio.
///
/// ```
/// use dwell_core::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let (before, after) = (clock.elapsed(), clock.elapsed());
/// assert!(before <= after);
/// assert!(clock.now().to_rfc3339().as_str() > "2026");
/// ```
#[derive(Clone)]
pub struct SystemClock {
    start: Instant,
    activity: Option<Arc<Activity>>,
}

impl SystemClock {
    /// Creates a clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: Instant::now(), activity: None }
    }

    /// Creates a clock that tracks its tasks, at a small cost for each wake-up: see
    /// [`Clock::idle`].
    ///
    /// ```
    /// use dwell_core::{Clock, SystemClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let clock = SystemClock::tracking();
    /// let task = tokio::spawn(clock.track(Box::pin(async { println!("work") })));
    /// clock.idle().await; // all tracked tasks wait or have ended
    /// assert!(task.is_finished());
    /// # }
    /// ```
    pub fn tracking() -> Self {
        Self { activity: Some(Arc::default()), ..Self::new() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("tracking", &self.activity.is_some()).finish()
    }
}

fn wall() -> Moment {
    SystemTime::now().into()
}

/// Returns a timer that also fires for a task without cooperative budget. Tokio reports a timer as
/// pending while a task has no budget left, so a timeout next to work that is always ready would
/// never fire.
fn sleep(delay: Duration) -> impl Future<Output = ()> + Send {
    tokio::task::unconstrained(tokio::time::sleep(delay))
}

impl Clock for SystemClock {
    fn moment(&self) -> Moment {
        wall()
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            loop {
                let wait = time.since(wall().floor());
                if wait.is_zero() {
                    return;
                }
                sleep(wait.min(LOOK_AGAIN)).await;
            }
        })
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        Box::pin(sleep(delay))
    }

    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        match &self.activity {
            Some(activity) => activity.track(task),
            None => task,
        }
    }

    fn idle(&self) -> BoxFuture<'static, ()> {
        match self.activity.clone() {
            Some(activity) => Box::pin(async move { activity.idle().await }),
            None => crate::ready(()),
        }
    }

    fn stirrings(&self) -> Option<u64> {
        self.activity.as_ref().map_or(Some(0), |activity| activity.stirrings())
    }

    fn busy(&self) -> Busy {
        self.activity.as_ref().map_or(Busy(None), Activity::busy)
    }
}
