//! History of the broker's wall clock.

use dwell_core::Timestamp;
use std::time::Duration;

/// History of a wall clock that is occasionally set.
pub(super) struct Walls {
    /// Monotonic time from which the wall clock has this offset, in milliseconds.
    origins: Vec<(Duration, i64)>,
}

impl Walls {
    pub(super) fn new(start: Timestamp) -> Self {
        Self { origins: vec![(Duration::ZERO, start.0)] }
    }

    /// Records that the clock was set, and shows `wall` now.
    pub(super) fn set(&mut self, at: Duration, wall: Timestamp) {
        self.origins.push((at, wall.0 - at.as_millis() as i64));
    }

    /// Returns the latest time shown between these two moments: a message due by then may run, even
    /// if the clock was set back since.
    pub(super) fn highest(&self, from: Duration, to: Duration) -> Timestamp {
        let ends = self.origins.iter().skip(1).map(|(start, _)| *start).chain([Duration::MAX]);
        let shown = self.origins.iter().zip(ends).filter(|((start, _), end)| *start <= to && *end >= from);
        let highest = shown.map(|((_, origin), end)| origin + end.min(to).as_millis() as i64).max();
        Timestamp(highest.unwrap_or(i64::MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_includes_times_before_the_clock_was_set_back() {
        let second = Duration::from_secs(1);
        let mut walls = Walls::new(Timestamp(100_000));
        walls.set(second * 10, Timestamp(50_000));
        assert_eq!(walls.highest(second, second * 20), Timestamp(110_000));
        assert_eq!(walls.highest(second * 11, second * 20), Timestamp(60_000));
        assert_eq!(walls.highest(second, second * 2), Timestamp(102_000));
    }
}
