//! How long things take: counted in buckets, without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds of the buckets, in microseconds: from a millisecond to ten minutes.
const BOUNDS: [u64; 17] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    600_000_000,
];

/// A histogram of durations. What is read while it is written may miss the last few.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// One for each bound, and one for all that is longer.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

/// What it had counted when it was read.
#[derive(Debug)]
pub(super) struct Reading {
    /// Upper bounds in seconds, each with what is in this bucket alone.
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) count: u64,
    /// In seconds.
    pub(super) sum: f64,
}

impl Histogram {
    pub(super) fn observe(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| bound * 1_000 < nanos);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn read(&self) -> Reading {
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<_> =
            bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        // From the same readings: the last bucket and the count must agree.
        let count = buckets.iter().map(|(_, count)| count).sum();
        Reading { buckets, count, sum: self.nanos.load(Relaxed) as f64 / 1e9 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_is_not_shorter() {
        let histogram = Histogram::default();
        for micros in [0, 1_000, 1_001, 600_000_000, 600_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let reading = histogram.read();
        let filled: Vec<_> = reading.buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(0.001, 2), (0.0025, 1), (600.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(reading.count, 5);
        assert!((reading.sum - 1_200.002_002).abs() < 1e-9, "{}", reading.sum);
    }
}
