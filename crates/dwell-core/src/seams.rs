//! The external inputs of a transport: time, random numbers, ids and its own name.

use crate::{Clock, Ids, Random, SeededRandom, SystemClock, Text, UuidIds, VirtualClock};
use std::{fmt, sync::Arc};

/// The external inputs of a transport: time, random numbers, ids and its own name. All parts of
/// Dwell take them from here, so that tests can replace them.
///
/// ```
/// use dwell_core::{Clock, Seams, VirtualClock};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let clock = VirtualClock::new();
/// let seams = Seams::virtual_time(clock.clone(), 42);
/// let start = seams.clock.now();
/// clock.advance(Duration::from_secs(3600)).await;
/// assert_eq!(seams.clock.now(), start.after(Duration::from_secs(3600)));
/// # }
/// ```
#[derive(Clone)]
pub struct Seams {
    /// Clock.
    pub clock: Arc<dyn Clock>,
    /// Source of new message ids.
    pub ids: Arc<dyn Ids>,
    /// Source of random numbers, for jitter.
    pub random: Arc<dyn Random>,
    /// Name of this process. Stable over restarts, for brokers that need such a name.
    pub instance: Text,
    /// Unique name of this run of the process, for fences and consumer names. A reused name would
    /// hide orphaned deliveries of an earlier run.
    pub incarnation: Text,
}

impl Seams {
    /// Creates the inputs of a real process.
    pub fn system(instance: impl Into<Text>) -> Self {
        Self::new(Arc::new(SystemClock::new()), Arc::new(SeededRandom::from_system()), instance)
    }

    /// Creates inputs for a test: virtual time, and random numbers and ids that depend on `seed`
    /// only.
    pub fn virtual_time(clock: VirtualClock, seed: u64) -> Self {
        Self::new(Arc::new(clock), Arc::new(SeededRandom::new(seed)), "test")
    }

    /// Creates inputs from a clock and a source of random numbers.
    pub fn new(clock: Arc<dyn Clock>, random: Arc<dyn Random>, instance: impl Into<Text>) -> Self {
        let ids = Arc::new(UuidIds::new(clock.clone(), random.clone()));
        let incarnation = format!("{:016x}", random.next()).into();
        Self { clock, ids, random, instance: instance.into(), incarnation }
    }
}

impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seams")
            .field("instance", &self.instance)
            .field("incarnation", &self.incarnation)
            .finish()
    }
}
