//! Numbers that a transport keeps about its own work, for whoever watches over it.

/// One metric of a transport's own, as it stands at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Its name, without `dwell_` before it, and without `_total` or a unit behind it: `relay_forwarded`.
    pub name: &'static str,
    /// What it counts, in one sentence.
    pub help: &'static str,
    /// What it is.
    pub value: Measured,
}

/// The value of a [`Measure`].
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(u64),
    /// The same, for each topic.
    GaugeOfTopics(Vec<(String, u64)>),
    /// How long things took, in seconds: the sum, and how many took up to a bound and longer than the one before it. The
    /// last bound is `f64::INFINITY`.
    Times {
        /// All of them, added up.
        sum: f64,
        /// Bounds, and how many.
        buckets: Vec<(f64, u64)>,
    },
}
