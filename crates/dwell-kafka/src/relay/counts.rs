//! What a relay has done, for those who watch over it.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counts as they go. Shared, and never reset.
#[derive(Debug, Default)]
pub struct Counts {
    forwarded: AtomicU64,
    shelved: AtomicU64,
    parked: AtomicU64,
    held: AtomicU64,
    overstayed: AtomicU64,
    waiting: AtomicU64,
    late: AtomicU64,
    latest: AtomicU64,
}

/// The counts of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Records that went to their target.
    pub forwarded: u64,
    /// Records that went to another level.
    pub shelved: u64,
    /// Records that can never be sent on.
    pub parked: u64,
    /// Records that wait again because their target was away.
    pub held: u64,
    /// Records whose level was longer than the time that they had: late, by who put them there.
    pub overstayed: u64,
    /// Records that wait in memory for their last stretch.
    pub waiting: u64,
    /// How late all forwarded records were, added up.
    pub lateness: Duration,
    /// How late the latest of them was.
    pub latest: Duration,
}

impl Counts {
    /// The counts of this moment.
    pub fn tally(&self) -> Tally {
        let of = |count: &AtomicU64| count.load(Relaxed);
        Tally {
            forwarded: of(&self.forwarded),
            shelved: of(&self.shelved),
            parked: of(&self.parked),
            held: of(&self.held),
            overstayed: of(&self.overstayed),
            waiting: of(&self.waiting),
            lateness: Duration::from_millis(of(&self.late)),
            latest: Duration::from_millis(of(&self.latest)),
        }
    }

    /// The same as text that Prometheus reads.
    pub fn prometheus(&self) -> String {
        let Tally { forwarded, shelved, parked, held, overstayed, waiting, lateness, latest } = self.tally();
        let counters = [
            ("forwarded", "Records that went to their target.", forwarded),
            ("shelved", "Records that went to another level.", shelved),
            ("parked", "Records that can never be sent on.", parked),
            ("held", "Records that wait again because their target was away.", held),
            ("overstayed", "Records whose level was longer than the time that they had.", overstayed),
        ];
        let mut text = String::new();
        for (name, help, value) in counters {
            let name = format!("dwell_relay_{name}_total");
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n"));
        }
        let gauges = [
            ("waiting", "Records that wait in memory for their last stretch.", waiting as f64),
            (
                "lateness_seconds_sum",
                "How late all forwarded records were, added up.",
                lateness.as_secs_f64(),
            ),
            ("lateness_seconds_max", "How late the latest forwarded record was.", latest.as_secs_f64()),
        ];
        for (name, help, value) in gauges {
            let name = format!("dwell_relay_{name}");
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n"));
        }
        text
    }

    pub(super) fn forwarded(&self, late: Duration) {
        let late = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.forwarded.fetch_add(1, Relaxed);
        self.late.fetch_add(late, Relaxed);
        self.latest.fetch_max(late, Relaxed);
    }

    pub(super) fn shelved(&self) {
        self.shelved.fetch_add(1, Relaxed);
    }

    pub(super) fn parked(&self) {
        self.parked.fetch_add(1, Relaxed);
    }

    pub(super) fn held(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    pub(super) fn overstayed(&self) {
        self.overstayed.fetch_add(1, Relaxed);
    }

    pub(super) fn waiting(&self, count: usize) {
        self.waiting.store(count as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told_in_numbers_and_as_text() {
        let counts = Counts::default();
        counts.forwarded(Duration::from_millis(3));
        counts.forwarded(Duration::from_millis(1));
        counts.parked();
        counts.waiting(7);
        let tally = counts.tally();
        assert_eq!((tally.forwarded, tally.parked, tally.waiting, tally.held), (2, 1, 7, 0));
        assert_eq!((tally.lateness, tally.latest), (Duration::from_millis(4), Duration::from_millis(3)));
        let text = counts.prometheus();
        for line in [
            "dwell_relay_forwarded_total 2",
            "dwell_relay_waiting 7",
            "dwell_relay_lateness_seconds_max 0.003",
        ] {
            assert!(text.lines().any(|given| given == line), "{text}");
        }
    }
}
