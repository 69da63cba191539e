//! What the broker's wall clock has shown.

use dwell_core::Timestamp;
use std::time::Duration;

/// The history of a wall clock that is set now and then.
pub(super) struct Walls {
    /// From this monotonic time on, the wall clock is so far ahead of it, in milliseconds.
    origins: Vec<(Duration, i64)>,
}

impl Walls {
    pub(super) fn new(start: Timestamp) -> Self {
        Self { origins: vec![(Duration::ZERO, start.0)] }
    }

    /// It was set, and shows `wall` now.
    pub(super) fn set(&mut self, at: Duration, wall: Timestamp) {
        self.origins.push((at, wall.0 - at.as_millis() as i64));
    }

    /// The latest time that it has shown between these two moments: what was due by then need not wait any longer,
    /// even if the clock was set back since.
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
    fn a_clock_that_was_set_back_has_still_shown_the_later_time() {
        let second = Duration::from_secs(1);
        let mut walls = Walls::new(Timestamp(100_000));
        walls.set(second * 10, Timestamp(50_000));
        assert_eq!(walls.highest(second, second * 20), Timestamp(110_000));
        assert_eq!(walls.highest(second * 11, second * 20), Timestamp(60_000));
        assert_eq!(walls.highest(second, second * 2), Timestamp(102_000));
    }
}
