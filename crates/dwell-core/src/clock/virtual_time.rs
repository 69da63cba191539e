//! A clock that stands still until a test advances it, and then jumps from timer to timer.

use super::{Busy, tracked::Activity};
use crate::{BoxFuture, Clock, Moment, Timestamp};
use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Virtual time. All clones are the same clock.
///
/// It moves only when told to, and only while every tracked task waits and no thread is busy:
/// production code then runs five days in a millisecond, and every timer on the way fires at its
/// own time. Use it on a current-thread runtime, which is what `#[tokio::test]` gives. A task that
/// never has to wait lets the others run, and time stands still meanwhile. On several threads, a
/// task that yields by itself may be overlooked.
///
/// ```
/// use dwell_core::{Clock, VirtualClock};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let clock = VirtualClock::new();
/// let five_days = Duration::from_secs(5 * 24 * 3600);
/// let due = clock.now().after(five_days);
/// let sleeping = tokio::spawn(clock.track(clock.sleep_until(due)));
/// clock.advance(five_days).await;
/// sleeping.await.unwrap();
/// assert_eq!(clock.now(), due);
/// # }
/// ```
#[derive(Clone)]
pub struct VirtualClock(Arc<Shared>);

struct Shared {
    state: Mutex<ClockState>,
    activity: Arc<Activity>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Fires at this wall time.
    Wall(Timestamp),
    /// Fires at this elapsed time.
    Elapsed(Duration),
    /// Fires at the first stop at or after this elapsed time.
    Tick(Duration),
}

struct ClockState {
    elapsed: Duration,
    /// Wall time in milliseconds when `elapsed` was zero.
    origin: i64,
    next_id: u64,
    timers: BTreeMap<(Timer, u64), Waker>,
}

impl ClockState {
    fn now(&self) -> Timestamp {
        Timestamp(self.origin.saturating_add(i64::try_from(self.elapsed.as_millis()).unwrap_or(i64::MAX)))
    }

    fn has_come(&self, timer: Timer) -> bool {
        match timer {
            Timer::Wall(time) => time <= self.now(),
            Timer::Elapsed(at) | Timer::Tick(at) => at <= self.elapsed,
        }
    }

    /// Returns the elapsed time of the next stop. Ticks cause no stop.
    fn next_stop(&self) -> Option<Duration> {
        let first = |from: Timer| self.timers.range((from, 0)..).next().map(|((timer, _), _)| *timer);
        let wall = match first(Timer::Wall(Timestamp(i64::MIN))) {
            Some(Timer::Wall(time)) => {
                let millis = time.0.saturating_sub(self.origin).max(0);
                Some(Duration::from_millis(millis as u64).max(self.elapsed))
            }
            _ => None,
        };
        let elapsed = match first(Timer::Elapsed(Duration::ZERO)) {
            Some(Timer::Elapsed(at)) => Some(at.max(self.elapsed)),
            _ => None,
        };
        wall.into_iter().chain(elapsed).min()
    }

    /// Removes the timers that are due, ordered by time and then by registration.
    fn take_due(&mut self) -> Vec<Waker> {
        let kinds = [
            (Timer::Wall(Timestamp(i64::MIN)), Timer::Wall(self.now())),
            (Timer::Elapsed(Duration::ZERO), Timer::Elapsed(self.elapsed)),
            (Timer::Tick(Duration::ZERO), Timer::Tick(self.elapsed)),
        ];
        let range = |(first, last)| self.timers.range((first, 0)..=(last, u64::MAX)).map(|(key, _)| *key);
        let due: Vec<_> = kinds.into_iter().flat_map(range).collect();
        due.into_iter().filter_map(|key| self.timers.remove(&key)).collect()
    }
}

impl VirtualClock {
    /// Creates a clock that starts on 1 January 2026, 00:00 UTC.
    pub fn new() -> Self {
        Self::starting_at(Timestamp(1_767_225_600_000))
    }

    /// Creates a clock that starts at this wall time.
    pub fn starting_at(now: Timestamp) -> Self {
        let state =
            ClockState { elapsed: Duration::ZERO, origin: now.0, next_id: 0, timers: BTreeMap::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), activity: Arc::default() }))
    }

    /// Completes when no tracked task is runnable and no thread is busy.
    pub async fn idle(&self) {
        self.0.activity.idle().await;
    }

    /// Advances by `by`. Stops at every timer on the way until no task has work left.
    pub async fn advance(&self, by: Duration) {
        let target = self.0.lock().elapsed.saturating_add(by);
        loop {
            self.idle().await;
            let Some(stop) = self.0.lock().next_stop().filter(|stop| *stop <= target) else { break };
            self.stop_at(stop);
        }
        self.stop_at(target);
        self.idle().await;
    }

    /// Advances to the next timer, if there is one within `limit`, and waits until no task has work
    /// left. Returns whether there was a timer.
    ///
    /// ```
    /// use dwell_core::{Clock, VirtualClock};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let (clock, hour) = (VirtualClock::new(), Duration::from_secs(3600));
    /// tokio::spawn(clock.track(clock.sleep(Duration::from_secs(90))));
    /// assert!(clock.step(hour).await);
    /// assert_eq!(clock.elapsed(), Duration::from_secs(90), "the time of the timer");
    /// assert!(!clock.step(hour).await, "no further timer");
    /// # }
    /// ```
    pub async fn step(&self, limit: Duration) -> bool {
        self.idle().await;
        let stop = {
            let state = self.0.lock();
            state.next_stop().filter(|stop| *stop <= state.elapsed.saturating_add(limit))
        };
        let Some(stop) = stop else { return false };
        self.stop_at(stop);
        self.idle().await;
        true
    }

    /// Sets the wall clock forward or back by `by` milliseconds, as an administrator would.
    /// Monotonic time does not change.
    pub fn step_wall(&self, by: i64) {
        let woken = {
            let mut state = self.0.lock();
            state.origin = state.origin.saturating_add(by);
            state.take_due()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    fn stop_at(&self, elapsed: Duration) {
        let woken = {
            let mut state = self.0.lock();
            state.elapsed = state.elapsed.max(elapsed);
            state.take_due()
        };
        woken.into_iter().for_each(Waker::wake);
    }

    fn sleep_on(&self, timer: Timer) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { clock: self.0.clone(), timer, id: None })
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("VirtualClock")
            .field("now", &state.now())
            .field("timers", &state.timers.len())
            .finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    /// Whole milliseconds.
    fn moment(&self) -> Moment {
        self.0.lock().now().into()
    }

    fn elapsed(&self) -> Duration {
        self.0.lock().elapsed
    }

    fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
        self.sleep_on(Timer::Wall(time))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        let at = self.elapsed().saturating_add(delay);
        self.sleep_on(Timer::Elapsed(at))
    }

    fn tick(&self, period: Duration) -> BoxFuture<'static, ()> {
        let at = self.elapsed().saturating_add(period);
        self.sleep_on(Timer::Tick(at))
    }

    fn track(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.0.activity.track(task)
    }

    fn idle(&self) -> BoxFuture<'static, ()> {
        let activity = self.0.activity.clone();
        Box::pin(async move { activity.idle().await })
    }

    fn stirrings(&self) -> Option<u64> {
        self.0.activity.stirrings()
    }

    fn busy(&self) -> Busy {
        self.0.activity.busy()
    }
}

struct Sleep {
    clock: Arc<Shared>,
    timer: Timer,
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.clock.lock();
        if state.has_come(this.timer) {
            if let Some(id) = this.id.take() {
                state.timers.remove(&(this.timer, id));
            }
            return Poll::Ready(());
        }
        let id = *this.id.get_or_insert_with(|| {
            state.next_id += 1;
            state.next_id
        });
        state.timers.insert((this.timer, id), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.lock().timers.remove(&(self.timer, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SECOND: Duration = Duration::from_secs(1);

    fn spawn(clock: &VirtualClock, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(clock.track(Box::pin(task)));
    }

    #[tokio::test]
    async fn timers_fire_in_order_at_their_own_time() {
        let clock = VirtualClock::new();
        let seen = Arc::new(Mutex::new(vec![]));
        for seconds in [3, 1, 2] {
            let (at, seen) = (clock.clone(), seen.clone());
            spawn(&clock, async move {
                at.sleep(SECOND * seconds).await;
                seen.lock().unwrap().push((seconds, at.elapsed()));
            });
        }
        clock.advance(SECOND * 10).await;
        let expected = [1, 2, 3].map(|seconds| (seconds, SECOND * seconds));
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(clock.elapsed(), SECOND * 10);
    }

    #[tokio::test]
    async fn a_timer_set_during_an_advance_fires() {
        let clock = VirtualClock::new();
        let turns = Arc::new(AtomicUsize::new(0));
        let (at, count) = (clock.clone(), turns.clone());
        spawn(&clock, async move {
            loop {
                at.sleep(SECOND).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        clock.advance(SECOND * 100).await;
        assert_eq!(turns.load(Ordering::SeqCst), 100);
    }

    #[tokio::test]
    async fn a_tick_fires_once_per_jump() {
        let clock = VirtualClock::new();
        let ticks = Arc::new(AtomicUsize::new(0));
        let (at, count) = (clock.clone(), ticks.clone());
        spawn(&clock, async move {
            loop {
                at.tick(SECOND).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        clock.advance(SECOND * 5 * 24 * 3600).await;
        assert_eq!(ticks.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn time_stands_still_while_a_thread_is_busy() {
        let clock = VirtualClock::new();
        let (send, receive) = tokio::sync::oneshot::channel();
        let busy = clock.busy();
        let thread = std::thread::spawn({
            let clock = clock.clone();
            move || {
                let seen = clock.elapsed();
                send.send(seen).unwrap();
                drop(busy);
            }
        });
        clock.advance(SECOND).await;
        assert_eq!(receive.await.unwrap(), Duration::ZERO);
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn setting_the_wall_clock_affects_only_wall_timers() {
        let clock = VirtualClock::new();
        let fired = Arc::new(Mutex::new(vec![]));
        let wall = clock.sleep_until(clock.now().after(SECOND * 10));
        let monotonic = clock.sleep(SECOND * 10);
        for (name, sleep) in [("wall", wall), ("monotonic", monotonic)] {
            let fired = fired.clone();
            spawn(&clock, async move {
                sleep.await;
                fired.lock().unwrap().push(name);
            });
        }
        clock.idle().await;
        clock.step_wall(10_000);
        clock.idle().await;
        assert_eq!(*fired.lock().unwrap(), ["wall"]);
        clock.step_wall(-3_600_000);
        clock.advance(SECOND * 10).await;
        assert_eq!(*fired.lock().unwrap(), ["wall", "monotonic"]);
    }

    #[tokio::test]
    async fn a_task_that_spends_its_budget_yields_and_stays_runnable() {
        let clock = VirtualClock::new();
        let turns = Arc::new(AtomicUsize::new(0));
        let count = turns.clone();
        spawn(&clock, async move {
            for _ in 0..1000 {
                tokio::task::consume_budget().await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut yields = 0;
        while turns.load(Ordering::SeqCst) < 1000 {
            assert_eq!(clock.stirrings(), None);
            tokio::task::yield_now().await;
            yields += 1;
        }
        assert!(yields > 1, "other tasks ran in between");
        clock.idle().await;
    }

    #[tokio::test]
    async fn a_panicking_task_does_not_stop_the_clock() {
        let clock = VirtualClock::new();
        let task = tokio::spawn(clock.track(Box::pin(async { panic!("planned") })));
        assert!(task.await.unwrap_err().is_panic());
        clock.advance(SECOND).await;
        assert_eq!(clock.elapsed(), SECOND);
    }

    #[tokio::test]
    async fn dropped_sleeps_and_tasks_leave_nothing_behind() {
        let clock = VirtualClock::new();
        let task = tokio::spawn(clock.track(clock.sleep(SECOND)));
        clock.idle().await;
        assert_eq!(clock.0.lock().timers.len(), 1);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(clock.0.lock().timers.len(), 0);
        drop(clock.track(Box::pin(std::future::pending())));
        clock.idle().await;
    }
}
