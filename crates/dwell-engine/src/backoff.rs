//! Growing pauses after failures.

use std::time::Duration;

/// Doubles a pause with each failure, up to a limit. Times are those of a monotonic clock.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    until: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest: longest.max(first), failures: 0, until: Duration::ZERO }
    }

    pub(crate) fn failed(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.until = now.saturating_add(self.pause().unwrap_or_default());
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.until = Duration::ZERO;
    }

    /// Returns the pause after the failures so far. `None` without a failure.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let doublings = self.failures.checked_sub(1)?;
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        Some(self.first.checked_mul(factor).unwrap_or(self.longest).min(self.longest))
    }

    /// Whether the pause is not over yet.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        now < self.until
    }

    /// Returns the rest of the pause.
    pub(crate) fn rest(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_reset_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(backoff.pause(), None);
        let pauses: Vec<_> = (0..200)
            .map(|_| {
                backoff.failed(Duration::ZERO);
                backoff.pause().unwrap().as_secs()
            })
            .collect();
        assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses[199], 60);
        assert!(backoff.holds(Duration::from_secs(59)) && !backoff.holds(Duration::from_secs(60)));
        backoff.succeeded();
        assert!(backoff.pause().is_none() && !backoff.holds(Duration::ZERO));
    }
}
