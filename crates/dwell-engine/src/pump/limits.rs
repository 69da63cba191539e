//! Limits of a subscription: unacceptable messages, and started runs per second.

use crate::settings::LONGEST_INTERVAL;
use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Maximum lateness of a timer for which a rate compensates.
const CATCH_UP: Duration = Duration::from_millis(5);

/// Counts messages that were rejected, invalid or released.
#[derive(Debug)]
pub(super) struct Unacceptable {
    limit: usize,
    window: Option<Duration>,
    seen: VecDeque<Duration>,
}

impl Unacceptable {
    pub(super) fn new(limit: u32, window: Option<Duration>) -> Self {
        Self { limit: limit as usize, window, seen: VecDeque::new() }
    }

    /// Counts a message. Returns whether the limit is reached.
    pub(super) fn count(&mut self, now: Duration) -> bool {
        if self.limit == 0 {
            return false;
        }
        if let Some(window) = self.window {
            while self.seen.front().is_some_and(|at| now.saturating_sub(*at) >= window) {
                self.seen.pop_front();
            }
        }
        self.seen.push_back(now);
        self.seen.len() >= self.limit
    }
}

/// Spaces the starts of runs evenly, over all performers of a subscription in this process.
#[derive(Debug)]
pub(super) struct Rate {
    interval: Option<Duration>,
    next: Mutex<Duration>,
}

impl Rate {
    pub(super) fn new(per_second: Option<f64>) -> Self {
        let interval =
            per_second.map(|rate| Duration::from_secs_f64((1.0 / rate).min(LONGEST_INTERVAL.as_secs_f64())));
        Self { interval, next: Mutex::new(Duration::ZERO) }
    }

    /// Takes the next start, and returns `None` if it is now. Otherwise returns the time until the
    /// next start.
    pub(super) fn take(&self, now: Duration) -> Option<Duration> {
        let interval = self.interval?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if now < *next {
            return Some(*next - now);
        }
        // Unused starts do not add up to a burst, except for the lateness of a coarse timer.
        *next = (*next).max(now.saturating_sub(CATCH_UP)) + interval;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_limit_counts_only_within_the_window() {
        let mut limit = Unacceptable::new(3, Some(SECOND * 10));
        assert_eq!([0, 1, 11, 12, 13].map(|at| limit.count(SECOND * at)), [false, false, false, false, true]);
        let mut unbounded = Unacceptable::new(2, None);
        assert_eq!([0, 1_000_000].map(|at| unbounded.count(SECOND * at)), [false, true]);
        let mut off = Unacceptable::new(0, None);
        assert!((0..100).all(|at| !off.count(SECOND * at)));
    }

    #[test]
    fn a_rate_spaces_runs_evenly_without_bursts() {
        let rate = Rate::new(Some(4.0));
        assert_eq!(rate.take(SECOND), None);
        assert_eq!(rate.take(SECOND), Some(SECOND / 4 - CATCH_UP));
        assert_eq!(rate.take(SECOND * 10), None);
        assert_eq!(rate.take(SECOND * 10), Some(SECOND / 4 - CATCH_UP));
        assert!((0..10).all(|_| Rate::new(None).take(SECOND).is_none()));
    }
}
