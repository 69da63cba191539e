//! Targets that are away: each is left alone for longer and longer, and no other waits for it.
//!
//! What is on its way to a target that does not answer takes up room until the library gives it up. So one that is silent gets
//! no more than a share of it, and one that has failed only a few records to try, until one of them gets there.

use dwell_core::Text;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The first pause after a failure; doubled up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Records on their way at one time to a target that has failed.
const PROBE: usize = 100;
/// How long one that has its share on the way may be silent before it is taken to be away.
const SILENCE: Duration = Duration::from_secs(1);

/// What is known of targets that failed lately, or that something is on its way to. Times are those of a monotonic clock.
#[derive(Debug)]
pub(super) struct Targets {
    /// Records on their way at one time to a target that does not answer.
    share: usize,
    known: Mutex<BTreeMap<Text, Target>>,
}

#[derive(Debug, Default)]
struct Target {
    /// Since it failed, and until something gets there.
    pause: Option<Pause>,
    on_their_way: usize,
    /// When it last answered, or when it began to owe us an answer.
    heard: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Duration,
}

/// That one record is on its way to a target, until this is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    targets: Arc<Targets>,
    target: Text,
}

impl Targets {
    pub(super) fn new(share: usize) -> Arc<Self> {
        Arc::new(Self { share, known: Mutex::default() })
    }

    /// Lets one more record go there. `Err` is for how long the target is to be left alone.
    pub(super) fn admit(self: &Arc<Self>, target: &Text, now: Duration) -> Result<Pass, Duration> {
        let mut known = self.lock();
        let of = known.entry(target.clone()).or_default();
        let is_crowded = match of.pause {
            Some(pause) => now < pause.until || of.on_their_way >= PROBE,
            None => of.on_their_way >= self.share && now.saturating_sub(of.heard) >= SILENCE,
        };
        if is_crowded {
            return Err(of.leave_alone(now));
        }
        if of.on_their_way == 0 {
            of.heard = now;
        }
        of.on_their_way += 1;
        Ok(Pass { targets: self.clone(), target: target.clone() })
    }

    /// It failed. Failures within a pause are the same failure.
    pub(super) fn failed(&self, target: &Text, now: Duration) -> Duration {
        let mut known = self.lock();
        let of = known.entry(target.clone()).or_default();
        of.heard = now;
        of.leave_alone(now)
    }

    /// It is there.
    pub(super) fn succeeded(&self, target: &str, now: Duration) {
        if let Some(of) = self.lock().get_mut(target) {
            (of.pause, of.heard) = (None, now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Text, Target>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target {
    /// For longer than the last time, unless that time is not over yet.
    fn leave_alone(&mut self, now: Duration) -> Duration {
        let pause = self.pause.get_or_insert(Pause { length: Duration::ZERO, until: Duration::ZERO });
        if now >= pause.until {
            pause.length = (pause.length * 2).clamp(FIRST, LONGEST);
            pause.until = now.saturating_add(pause.length);
        }
        pause.length
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut known = self.targets.lock();
        let Some(of) = known.get_mut(&self.target) else { return };
        of.on_their_way -= 1;
        if of.on_their_way == 0 && of.pause.is_none() {
            known.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn admit(targets: &Arc<Targets>, target: &str, now: Duration) -> Result<Pass, Duration> {
        targets.admit(&Text::from(target), now)
    }

    #[test]
    fn one_that_fails_is_left_alone_for_longer_and_longer_and_no_other_is() {
        let (targets, orders) = (Targets::new(usize::MAX), Text::from("orders"));
        assert_eq!(targets.failed(&orders, Duration::ZERO), SECOND);
        assert_eq!(targets.failed(&orders, SECOND / 2), SECOND, "the same failure");
        assert_eq!(admit(&targets, "orders", SECOND / 2).unwrap_err(), SECOND);
        assert!(admit(&targets, "mail", SECOND / 2).is_ok());
        assert!(admit(&targets, "orders", SECOND).is_ok(), "tried again");
        assert_eq!(targets.failed(&orders, SECOND), SECOND * 2);
        let longest = (1..20).map(|n| targets.failed(&orders, SECOND * 100 * n)).max();
        assert_eq!(longest, Some(LONGEST));
        targets.succeeded("orders", SECOND * 5000);
        assert_eq!(targets.failed(&orders, SECOND * 5000), SECOND);
    }

    #[test]
    fn one_that_has_failed_is_tried_with_few_until_it_works() {
        let (targets, orders) = (Targets::new(usize::MAX), Text::from("orders"));
        targets.failed(&orders, Duration::ZERO);
        let mut passes: Vec<_> = (0..PROBE).map(|_| admit(&targets, "orders", SECOND * 2).unwrap()).collect();
        assert_eq!(admit(&targets, "orders", SECOND * 2).unwrap_err(), SECOND * 2);
        assert_eq!(admit(&targets, "orders", SECOND * 3).unwrap_err(), SECOND * 2);
        assert_eq!(
            admit(&targets, "orders", SECOND * 4).unwrap_err(),
            SECOND * 4,
            "none of them has arrived"
        );
        passes.pop();
        assert!(admit(&targets, "orders", SECOND * 8).is_ok(), "one was given up");
        passes.push(admit(&targets, "orders", SECOND * 8).unwrap());
        targets.succeeded("orders", SECOND * 8);
        assert!(admit(&targets, "orders", SECOND * 8).is_ok(), "it works");
        drop(passes);
        assert!(targets.lock().is_empty(), "nothing is kept of one that works");
    }

    #[test]
    fn one_that_is_silent_gets_no_more_than_its_share() {
        let targets = Targets::new(3);
        let mut passes: Vec<_> = (0..5).map(|_| admit(&targets, "orders", SECOND / 2).unwrap()).collect();
        assert_eq!(admit(&targets, "orders", SECOND * 3 / 2).unwrap_err(), FIRST);
        assert!(admit(&targets, "mail", SECOND * 3 / 2).is_ok());
        targets.succeeded("orders", SECOND * 3 / 2);
        assert!(admit(&targets, "orders", SECOND * 2).is_ok(), "it has answered");
        passes.truncate(2);
        assert!(admit(&targets, "orders", SECOND * 9).is_ok(), "it has not got its share");
    }
}
