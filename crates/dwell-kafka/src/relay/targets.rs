//! Targets that are away: each is left alone for longer and longer, and no other waits for it.

use dwell_core::Text;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The first pause after a failure; doubled up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is known of targets that failed lately. Times are those of a monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Targets(Mutex<BTreeMap<Text, Pause>>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Duration,
}

impl Targets {
    /// How long this one is to be left alone, if it is.
    pub(super) fn pause(&self, target: &str, now: Duration) -> Option<Duration> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(target).filter(|pause| now < pause.until).map(|pause| pause.length)
    }

    /// It failed. Failures within a pause are the same failure.
    pub(super) fn failed(&self, target: &Text, now: Duration) -> Duration {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pause =
            known.entry(target.clone()).or_insert(Pause { length: Duration::ZERO, until: Duration::ZERO });
        if now >= pause.until {
            pause.length = (pause.length * 2).clamp(FIRST, LONGEST);
            pause.until = now.saturating_add(pause.length);
        }
        pause.length
    }

    /// It is there again.
    pub(super) fn succeeded(&self, target: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_is_left_alone_for_longer_and_longer_and_no_other_is() {
        let (targets, second, orders) = (Targets::default(), Duration::from_secs(1), Text::from("orders"));
        assert_eq!(targets.failed(&orders, Duration::ZERO), second);
        assert_eq!(targets.failed(&orders, second / 2), second, "the same failure");
        assert_eq!(
            (targets.pause("orders", second / 2), targets.pause("mail", second / 2)),
            (Some(second), None)
        );
        assert_eq!(targets.pause("orders", second), None, "tried again");
        assert_eq!(targets.failed(&orders, second), second * 2);
        let longest = (0..20).map(|n| targets.failed(&orders, second * 100 * (n + 1))).last();
        assert_eq!(longest, Some(LONGEST));
        targets.succeeded("orders");
        assert_eq!(targets.failed(&orders, second * 5000), second);
    }
}
