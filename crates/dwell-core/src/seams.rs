//! What a transport needs from outside: time, randomness, ids and its own name.

use crate::{Clock, Ids, Random, SeededRandom, SystemClock, Text, UuidIds, VirtualClock};
use std::{fmt, sync::Arc};

/// What a transport needs from outside. Nothing else in Dwell knows what time it is, or throws dice.
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
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// New message ids.
    pub ids: Arc<dyn Ids>,
    /// Jitter.
    pub random: Arc<dyn Random>,
    /// Stable over restarts, where a broker wants a name.
    pub instance: Text,
    /// New at each start, for fences and consumer names: a name that was used before defeats the search for orphans.
    pub incarnation: Text,
}

impl Seams {
    /// The real ones.
    ///
    /// ```
    /// use dwell_core::Seams;
    ///
    /// let seams = Seams::system("shop-1");
    /// assert_eq!(&*seams.instance, "shop-1");
    /// assert_ne!(seams.incarnation, Seams::system("shop-1").incarnation, "another start");
    /// ```
    pub fn system(instance: impl Into<Text>) -> Self {
        Self::new(Arc::new(SystemClock::new()), Arc::new(SeededRandom::from_system()), instance)
    }

    /// Virtual time and the same randomness for the same seed.
    ///
    /// ```
    /// use dwell_core::{Seams, VirtualClock};
    ///
    /// let [first, second] = [(); 2].map(|()| Seams::virtual_time(VirtualClock::new(), 42));
    /// assert_eq!(first.ids.next(), second.ids.next(), "the same seed, the same ids");
    /// ```
    pub fn virtual_time(clock: VirtualClock, seed: u64) -> Self {
        Self::new(Arc::new(clock), Arc::new(SeededRandom::new(seed)), "test")
    }

    /// From a clock and a source of randomness.
    ///
    /// ```
    /// use dwell_core::{Seams, SeededRandom, SystemClock};
    /// use std::sync::Arc;
    ///
    /// let random = Arc::new(SeededRandom::from_system());
    /// let seams = Seams::new(Arc::new(SystemClock::tracking()), random, "shop-1");
    /// assert_ne!(seams.ids.next(), seams.ids.next());
    /// ```
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
