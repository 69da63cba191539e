//! Metrics that a transport keeps about its own work.

/// A metric of a transport, with its current value.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Name without the prefix `dwell_` and without a suffix such as `_total` or a unit:
    /// `relay_forwarded`.
    pub name: &'static str,
    /// Help text, in one sentence.
    pub help: &'static str,
    /// Current value.
    pub value: Measured,
}

/// The value of a [`Measure`].
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// A number that only grows.
    Counter(u64),
    /// A number that grows and shrinks.
    Gauge(u64),
    /// A gauge for each topic.
    GaugeOfTopics(Vec<(String, u64)>),
    /// A histogram of durations in seconds. Each bucket counts the durations up to its bound and
    /// above the bound before it. The last bound is `f64::INFINITY`.
    Times {
        /// Sum of all durations.
        sum: f64,
        /// Bound and count of each bucket.
        buckets: Vec<(f64, u64)>,
    },
}
