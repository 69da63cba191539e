//! Unavailable targets: the relay retries each of them after growing pauses, without delaying other
//! targets.
//!
//! Records in flight to a target that does not answer occupy memory until librdkafka times them
//! out. So a silent target gets at most a share of the memory, all silent targets together get at
//! most two shares, and a target that has failed gets only a few records until one of them arrives.

use super::passing::Load;
use dwell_core::{Error, Text};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The first pause after a failure. It doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Records in flight at one time to a target that has failed.
const PROBE: usize = 100;
/// Part of a share that the bytes of these records may have.
const PROBE_PART: usize = 8;
/// How long a target with its share in flight may be silent before it counts as unavailable.
const SILENCE: Duration = Duration::from_secs(1);

/// Targets that failed recently or have records in flight. Times are those of a monotonic clock.
#[derive(Debug)]
pub(super) struct Targets {
    /// Limit of what is in flight to one target that does not answer; no limit with transactions.
    share: Option<Load>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    targets: BTreeMap<Text, Target>,
    /// Load in flight to all targets.
    in_flight: Load,
}

#[derive(Debug, Default)]
struct Target {
    /// Set after a failure, until a record arrives.
    pause: Option<Pause>,
    in_flight: Load,
    /// When it last answered, or when its first record in flight was sent.
    heard: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    length: Duration,
    until: Duration,
    /// Whether a record failed, rather than none being answered for a moment.
    is_failure: bool,
}

/// One record in flight to a target, until this value is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    targets: Arc<Targets>,
    target: Text,
    size: usize,
}

impl Targets {
    pub(super) fn new(share: Option<Load>) -> Arc<Self> {
        Arc::new(Self { share, known: Mutex::default() })
    }

    /// Admits one more record of this size. `Err` contains how long the record has to wait.
    pub(super) fn admit(
        self: &Arc<Self>,
        target: &Text,
        size: usize,
        now: Duration,
    ) -> Result<Pass, Duration> {
        let mut known = self.lock();
        let Known { targets, in_flight } = &mut *known;
        let of = targets.entry(target.clone()).or_default();
        let is_crowded = match (of.pause, self.share) {
            (Some(pause), share) => now < pause.until || !of.in_flight.is_below(probe(share)),
            (None, None) => false,
            (None, Some(share)) => {
                let is_silent = of.in_flight.count > 0 && now.saturating_sub(of.heard) >= SILENCE;
                is_silent && !(of.in_flight.is_below(share) && in_flight.is_below(share.plus(share)))
            }
        };
        if is_crowded {
            let in_flight = of.in_flight.count;
            return Err(of.leave_alone(now, |pause| {
                tracing::warn!(
                    target = &**target,
                    in_flight,
                    ?pause,
                    "target topic does not answer; holding its records"
                );
            }));
        }
        if of.in_flight.count == 0 {
            of.heard = now;
        }
        let one = Load { count: 1, bytes: size };
        of.in_flight.add(one);
        in_flight.add(one);
        Ok(Pass { targets: self.clone(), target: target.clone(), size })
    }

    /// Notes a failure. Failures within a pause count as one. Returns how long the record has to
    /// wait.
    pub(super) fn failed(&self, target: &Text, error: &Error, now: Duration) -> Duration {
        let mut known = self.lock();
        let of = known.targets.entry(target.clone()).or_default();
        of.heard = now;
        let length = of.leave_alone(now, |pause| {
            tracing::warn!(%error, target = &**target, ?pause, "target topic unavailable; holding its records");
        });
        of.pause.iter_mut().for_each(|pause| pause.is_failure = true);
        length
    }

    /// Notes that a record has arrived.
    pub(super) fn succeeded(&self, target: &str, now: Duration) {
        if let Some(of) = self.lock().targets.get_mut(target) {
            // Some partitions of a target that has failed may be available all the time.
            if of.pause.take_if(|pause| !pause.is_failure || now >= pause.until).is_some() {
                tracing::info!(target, "target topic available again");
            }
            of.heard = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what may be in flight to a target that has failed: at least one record.
fn probe(share: Option<Load>) -> Load {
    Load { count: PROBE, bytes: share.map_or(usize::MAX, |share| share.bytes.div_ceil(PROBE_PART)) }
}

impl Target {
    /// Starts a pause that is longer than the last one, unless that one is not over. `log` is
    /// called for the first pause.
    fn leave_alone(&mut self, now: Duration, log: impl FnOnce(Duration)) -> Duration {
        let is_first = self.pause.is_none();
        let pause = self.pause.get_or_insert_default();
        if now >= pause.until {
            pause.length = (pause.length * 2).clamp(FIRST, LONGEST);
            pause.until = now.saturating_add(pause.length);
        }
        let length = pause.length;
        if is_first {
            log(length);
        }
        length
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut known = self.targets.lock();
        let one = Load { count: 1, bytes: self.size };
        known.in_flight.remove(one);
        let Some(of) = known.targets.get_mut(&self.target) else { return };
        of.in_flight.remove(one);
        if of.in_flight.count == 0 && of.pause.is_none() {
            known.targets.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::ErrorKind;

    const SECOND: Duration = Duration::from_secs(1);

    /// Admits a record of one byte.
    fn admit(targets: &Arc<Targets>, target: &str, now: Duration) -> Result<Pass, Duration> {
        targets.admit(&Text::from(target), 1, now)
    }

    fn fail(targets: &Targets, target: &Text, now: Duration) -> Duration {
        targets.failed(target, &Error::new(ErrorKind::Timeout, "no answer"), now)
    }

    fn share(count: usize, bytes: usize) -> Option<Load> {
        Some(Load { count, bytes })
    }

    #[test]
    fn a_failed_target_is_paused_for_growing_times_without_delaying_others() {
        let (targets, orders) = (Targets::new(None), Text::from("orders"));
        assert_eq!(fail(&targets, &orders, Duration::ZERO), SECOND);
        assert_eq!(fail(&targets, &orders, SECOND / 2), SECOND, "the same failure");
        assert_eq!(admit(&targets, "orders", SECOND / 2).unwrap_err(), SECOND);
        assert!(admit(&targets, "mail", SECOND / 2).is_ok());
        assert!(admit(&targets, "orders", SECOND).is_ok(), "the target is retried");
        assert_eq!(fail(&targets, &orders, SECOND), SECOND * 2);
        let longest = (1..20).map(|n| fail(&targets, &orders, SECOND * 100 * n)).max();
        assert_eq!(longest, Some(LONGEST));
        targets.succeeded("orders", SECOND * 5000);
        assert_eq!(fail(&targets, &orders, SECOND * 5000), SECOND);
    }

    #[test]
    fn a_failed_target_gets_few_records_until_one_arrives() {
        let (targets, orders) = (Targets::new(None), Text::from("orders"));
        fail(&targets, &orders, Duration::ZERO);
        let mut passes: Vec<_> = (0..PROBE).map(|_| admit(&targets, "orders", SECOND * 2).unwrap()).collect();
        assert_eq!(admit(&targets, "orders", SECOND * 2).unwrap_err(), SECOND * 2);
        assert_eq!(admit(&targets, "orders", SECOND * 3).unwrap_err(), SECOND * 2);
        assert_eq!(
            admit(&targets, "orders", SECOND * 4).unwrap_err(),
            SECOND * 4,
            "none of them has arrived"
        );
        passes.pop();
        assert!(admit(&targets, "orders", SECOND * 8).is_ok(), "one record timed out");
        passes.push(admit(&targets, "orders", SECOND * 8).unwrap());
        targets.succeeded("orders", SECOND * 8);
        assert!(admit(&targets, "orders", SECOND * 8).is_ok(), "the target works");
        drop(passes);
        assert!(targets.lock().targets.is_empty(), "a working target is not remembered");
    }

    #[test]
    fn a_silent_target_is_limited_to_its_share_of_records_and_bytes() {
        for (share, size) in [(share(3, 1_000), 1), (share(1_000, 3_000), 1_000)] {
            let targets = Targets::new(share);
            let admit = |target: &str, now| targets.admit(&Text::from(target), size, now);
            let mut passes: Vec<_> = (0..5).map(|_| admit("orders", SECOND / 2).unwrap()).collect();
            assert_eq!(admit("orders", SECOND * 3 / 2).unwrap_err(), FIRST);
            assert!(admit("mail", SECOND * 3 / 2).is_ok());
            targets.succeeded("orders", SECOND * 3 / 2);
            assert!(admit("orders", SECOND * 2).is_ok(), "the target has answered");
            passes.truncate(2);
            assert!(admit("orders", SECOND * 9).is_ok(), "the target has less than its share");
        }
    }

    #[test]
    fn a_target_that_fails_in_part_stays_paused_although_other_records_arrive() {
        let (targets, orders) = (Targets::new(None), Text::from("orders"));
        fail(&targets, &orders, Duration::ZERO);
        targets.succeeded("orders", SECOND / 2);
        assert!(admit(&targets, "orders", SECOND / 2).is_err());
        targets.succeeded("orders", SECOND);
        assert!(admit(&targets, "orders", SECOND).is_ok());
    }

    #[test]
    fn all_silent_targets_together_are_limited_to_two_shares() {
        let targets = Targets::new(share(3, 1_000));
        let names = ["a", "b", "c"];
        let passes: Vec<_> =
            names.iter().flat_map(|name| [0; 2].map(|_| admit(&targets, name, SECOND).unwrap())).collect();
        for name in names {
            assert_eq!(admit(&targets, name, SECOND * 2).unwrap_err(), FIRST);
        }
        assert!(admit(&targets, "d", SECOND * 2).is_ok(), "a new target is not silent");
        drop(passes);
        assert_eq!(targets.lock().in_flight.count, 0);
    }

    #[test]
    fn a_failed_target_gets_few_bytes_but_at_least_one_record() {
        let (targets, orders) = (Targets::new(share(1_000, 8_000)), Text::from("orders"));
        fail(&targets, &orders, Duration::ZERO);
        let passes: Vec<_> = (0..2).map(|_| targets.admit(&orders, 500, SECOND * 2).unwrap()).collect();
        assert!(targets.admit(&orders, 500, SECOND * 2).is_err());
        drop(passes);
        assert!(targets.admit(&orders, 1 << 30, SECOND * 9).is_ok());
    }
}
