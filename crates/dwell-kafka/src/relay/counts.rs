//! What a relay has done, for those who watch over it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Up to how late records are counted together, in milliseconds; the last one has no limit.
const BUCKETS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 60_000, 3_600_000];

/// Counts as they go. Shared, and never reset.
#[derive(Debug, Default)]
pub struct Counts {
    forwarded: AtomicU64,
    shelved: AtomicU64,
    parked: AtomicU64,
    put_back: AtomicU64,
    overstayed: AtomicU64,
    held: AtomicU64,
    late: AtomicU64,
    latest: AtomicU64,
    /// How many were this late, and not less.
    buckets: [AtomicU64; BUCKETS.len()],
    lag: Mutex<BTreeMap<String, u64>>,
}

/// The counts of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Records that went to their target.
    pub forwarded: u64,
    /// Records that went to another level.
    pub shelved: u64,
    /// Records that can never be sent on.
    pub parked: u64,
    /// Records that wait once more because their target was away.
    pub put_back: u64,
    /// Records whose level was longer than the time that they had: late, by who put them there.
    pub overstayed: u64,
    /// Records that are held in memory for their last stretch.
    pub held: u64,
    /// How late all forwarded records were, added up.
    pub lateness: Duration,
    /// How late the latest of them was.
    pub latest: Duration,
    /// What lies in the partitions of each delay topic that are this relay's, and was not sent on yet.
    pub lag: BTreeMap<String, u64>,
}

impl Counts {
    /// The counts of this moment.
    pub fn tally(&self) -> Tally {
        let of = |count: &AtomicU64| count.load(Relaxed);
        Tally {
            forwarded: of(&self.forwarded),
            shelved: of(&self.shelved),
            parked: of(&self.parked),
            put_back: of(&self.put_back),
            overstayed: of(&self.overstayed),
            held: of(&self.held),
            lateness: Duration::from_millis(of(&self.late)),
            latest: Duration::from_millis(of(&self.latest)),
            lag: self.lag.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// The same as text that Prometheus reads.
    pub fn prometheus(&self) -> String {
        let tally = self.tally();
        let head = |name: &str, kind: &str, help: &str| {
            format!("# HELP dwell_relay_{name} {help}\n# TYPE dwell_relay_{name} {kind}\n")
        };
        let mut all = String::new();
        for (name, help, value) in [
            ("forwarded_total", "Records that went to their target.", tally.forwarded),
            ("shelved_total", "Records that went to another level.", tally.shelved),
            ("parked_total", "Records that can never be sent on.", tally.parked),
            ("put_back_total", "Records that wait once more because their target was away.", tally.put_back),
            (
                "overstayed_total",
                "Records whose level was longer than the time that they had.",
                tally.overstayed,
            ),
        ] {
            let _ = writeln!(all, "{}dwell_relay_{name} {value}", head(name, "counter", help));
        }
        let help = "Records that are held in memory for their last stretch.";
        let _ = writeln!(all, "{}dwell_relay_held {}", head("held", "gauge", help), tally.held);
        let help = "Records in the partitions of this relay that were not sent on yet.";
        all.push_str(&head("lag", "gauge", help));
        for (topic, lag) in &tally.lag {
            let _ = writeln!(all, "dwell_relay_lag{{topic=\"{topic}\"}} {lag}");
        }
        all.push_str(&head("lateness_seconds", "histogram", "How late forwarded records were."));
        let mut count = 0;
        for (limit, bucket) in BUCKETS.into_iter().zip(&self.buckets) {
            count += bucket.load(Relaxed);
            let limit = Duration::from_millis(limit).as_secs_f64();
            let _ = writeln!(all, "dwell_relay_lateness_seconds_bucket{{le=\"{limit}\"}} {count}");
        }
        let (sum, count) = (tally.lateness.as_secs_f64(), tally.forwarded);
        let _ = writeln!(all, "dwell_relay_lateness_seconds_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(all, "dwell_relay_lateness_seconds_sum {sum}");
        let _ = writeln!(all, "dwell_relay_lateness_seconds_count {count}");
        all
    }

    pub(super) fn forwarded(&self, late: Duration) {
        let late = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.forwarded.fetch_add(1, Relaxed);
        self.late.fetch_add(late, Relaxed);
        self.latest.fetch_max(late, Relaxed);
        if let Some(bucket) = BUCKETS.iter().position(|limit| late <= *limit) {
            self.buckets[bucket].fetch_add(1, Relaxed);
        }
    }

    pub(super) fn shelved(&self) {
        self.shelved.fetch_add(1, Relaxed);
    }

    pub(super) fn parked(&self) {
        self.parked.fetch_add(1, Relaxed);
    }

    pub(super) fn put_back(&self) {
        self.put_back.fetch_add(1, Relaxed);
    }

    pub(super) fn overstayed(&self) {
        self.overstayed.fetch_add(1, Relaxed);
    }

    pub(super) fn holds_more(&self, count: usize) {
        self.held.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn holds_less(&self, count: usize) {
        self.held.fetch_sub(count as u64, Relaxed);
    }

    pub(super) fn lags(&self, topic: &str, lag: u64) {
        let mut all = self.lag.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(topic) {
            Some(known) => *known = lag,
            None => drop(all.insert(topic.to_owned(), lag)),
        }
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
        counts.holds_more(9);
        counts.holds_less(2);
        counts.lags("delay-5s", 12);
        let tally = counts.tally();
        assert_eq!((tally.forwarded, tally.parked, tally.held, tally.put_back), (2, 1, 7, 0));
        assert_eq!((tally.lateness, tally.latest), (Duration::from_millis(4), Duration::from_millis(3)));
        let text = counts.prometheus();
        for line in [
            "# TYPE dwell_relay_forwarded_total counter",
            "dwell_relay_forwarded_total 2",
            "dwell_relay_held 7",
            "dwell_relay_lag{topic=\"delay-5s\"} 12",
            "dwell_relay_lateness_seconds_bucket{le=\"0.001\"} 1",
            "dwell_relay_lateness_seconds_bucket{le=\"0.005\"} 2",
            "dwell_relay_lateness_seconds_bucket{le=\"+Inf\"} 2",
            "dwell_relay_lateness_seconds_sum 0.004",
        ] {
            assert!(text.lines().any(|given| given == line), "{line}\n{text}");
        }
    }
}
