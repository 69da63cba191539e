//! Counters of a relay, for monitoring.

use dwell_core::{Measure, Measured};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Upper bounds of the lateness histogram, in milliseconds. Later records are in a last bucket
/// without a bound.
const BUCKETS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 60_000, 3_600_000];

/// Counters of a relay. They are shared and never reset.
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
    /// Number of records in each bucket of the lateness histogram.
    buckets: [AtomicU64; BUCKETS.len()],
    lag: Mutex<BTreeMap<String, u64>>,
    /// Number of clients that were replaced.
    pub(super) replaced: Arc<AtomicU64>,
    troubled: Mutex<BTreeMap<String, String>>,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Records that were forwarded to their target.
    pub forwarded: u64,
    /// Records that were moved to another level.
    pub shelved: u64,
    /// Records that can never be forwarded.
    pub parked: u64,
    /// Records that were put back into a delay topic because their target was unavailable or
    /// absent.
    pub put_back: u64,
    /// Records whose level was longer than their delay by more than a hop. Their sender made them
    /// late.
    pub overstayed: u64,
    /// Records that are held in memory for their last stretch.
    pub held: u64,
    /// Total lateness of all forwarded records.
    pub lateness: Duration,
    /// Lateness of the latest record.
    pub latest: Duration,
    /// By delay topic, the number of records in this relay's partitions that were not sent on yet.
    pub lag: BTreeMap<String, u64>,
    /// Number of clients that did not recover and were replaced.
    pub replaced: u64,
    /// Delay topics whose records this relay does not receive, and why.
    pub troubled: BTreeMap<String, String>,
}

impl Counts {
    /// Returns the counters at this moment.
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
            replaced: of(&self.replaced),
            troubled: self.troubled.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Returns the counters as measures.
    pub(crate) fn measures(&self) -> Vec<Measure> {
        let tally = self.tally();
        let measure = |name, help, value| Measure { name, help, value };
        let mut buckets: Vec<_> = BUCKETS
            .into_iter()
            .zip(&self.buckets)
            .map(|(limit, bucket)| (Duration::from_millis(limit).as_secs_f64(), bucket.load(Relaxed)))
            .collect();
        let counted: u64 = buckets.iter().map(|(_, count)| count).sum();
        buckets.push((f64::INFINITY, tally.forwarded.saturating_sub(counted)));
        let lateness = Measured::Times { sum: tally.lateness.as_secs_f64(), buckets };
        let is_troubled = |topic: &String| u64::from(tally.troubled.contains_key(topic));
        let troubled = tally.lag.keys().map(|topic| (topic.clone(), is_troubled(topic))).collect();
        let troubled = Measured::GaugeOfTopics(troubled);
        let lag = Measured::GaugeOfTopics(tally.lag.into_iter().collect());
        vec![
            measure(
                "relay_forwarded",
                "Records that were forwarded to their target.",
                Measured::Counter(tally.forwarded),
            ),
            measure(
                "relay_shelved",
                "Records that were moved to another level.",
                Measured::Counter(tally.shelved),
            ),
            measure("relay_parked", "Records that can never be forwarded.", Measured::Counter(tally.parked)),
            measure(
                "relay_put_back",
                "Records that were put back because their target was unavailable or absent.",
                Measured::Counter(tally.put_back),
            ),
            measure(
                "relay_overstayed",
                "Records whose level was longer than their delay, by more than a hop.",
                Measured::Counter(tally.overstayed),
            ),
            measure(
                "relay_held",
                "Records that are held in memory for their last stretch.",
                Measured::Gauge(tally.held),
            ),
            measure(
                "relay_lag",
                "Records in the partitions of this relay that were not yet forwarded or moved to another level.",
                lag,
            ),
            measure("relay_lateness", "Lateness of forwarded records.", lateness),
            measure(
                "relay_replaced_clients",
                "Clients that did not recover and were replaced.",
                Measured::Counter(tally.replaced),
            ),
            measure(
                "relay_troubled",
                "1 for a delay topic whose records this relay does not receive, else 0.",
                troubled,
            ),
        ]
    }

    /// Returns the counters in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        let mut all = String::new();
        for Measure { name, help, value } in self.measures() {
            let (end, kind) = match &value {
                Measured::Counter(_) => ("_total", "counter"),
                Measured::Times { .. } => ("_seconds", "histogram"),
                Measured::Gauge(_) | Measured::GaugeOfTopics(_) => ("", "gauge"),
            };
            let name = format!("dwell_{name}{end}");
            let _ = writeln!(all, "# HELP {name} {help}\n# TYPE {name} {kind}");
            match value {
                Measured::Counter(value) | Measured::Gauge(value) => {
                    let _ = writeln!(all, "{name} {value}");
                }
                Measured::GaugeOfTopics(values) => {
                    for (topic, value) in values {
                        let _ = writeln!(all, "{name}{{topic=\"{topic}\"}} {value}");
                    }
                }
                Measured::Times { sum, buckets } => {
                    let mut total = 0;
                    for (limit, count) in buckets {
                        total += count;
                        let limit = if limit.is_infinite() { "+Inf".to_owned() } else { limit.to_string() };
                        let _ = writeln!(all, "{name}_bucket{{le=\"{limit}\"}} {total}");
                    }
                    let _ = writeln!(all, "{name}_sum {sum}\n{name}_count {total}");
                }
            }
        }
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

    /// Clears what is known of each delay topic, because a relay that starts may have other levels
    /// than the one before.
    pub(super) fn start(&self) {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.lag.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Notes whether the records of a delay topic arrive, and otherwise why not.
    pub(super) fn serves(&self, topic: &str, trouble: Option<String>) {
        let mut all = self.troubled.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => drop(all.insert(topic.to_owned(), trouble)),
            None => drop(all.remove(topic)),
        }
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
    fn counts_appear_in_the_tally_and_in_the_prometheus_text() {
        let counts = Counts::default();
        counts.forwarded(Duration::from_millis(3));
        counts.forwarded(Duration::from_millis(1));
        counts.parked();
        counts.holds_more(9);
        counts.holds_less(2);
        counts.lags("delay-5s", 12);
        counts.serves("delay-5s", Some("outside its group".to_owned()));
        let tally = counts.tally();
        assert_eq!((tally.forwarded, tally.parked, tally.held, tally.put_back), (2, 1, 7, 0));
        assert_eq!((tally.lateness, tally.latest), (Duration::from_millis(4), Duration::from_millis(3)));
        let text = counts.prometheus();
        for line in [
            "# TYPE dwell_relay_forwarded_total counter",
            "dwell_relay_forwarded_total 2",
            "dwell_relay_held 7",
            "dwell_relay_lag{topic=\"delay-5s\"} 12",
            "dwell_relay_troubled{topic=\"delay-5s\"} 1",
            "dwell_relay_replaced_clients_total 0",
            "dwell_relay_lateness_seconds_bucket{le=\"0.001\"} 1",
            "dwell_relay_lateness_seconds_bucket{le=\"0.005\"} 2",
            "dwell_relay_lateness_seconds_bucket{le=\"+Inf\"} 2",
            "dwell_relay_lateness_seconds_sum 0.004",
        ] {
            assert!(text.lines().any(|given| given == line), "{line}\n{text}");
        }
    }
}
