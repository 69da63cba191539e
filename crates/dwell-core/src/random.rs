//! Randomness, as a parameter.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

/// Random numbers for jitter and ids. A seam: a simulation gives the same numbers for the same seed.
///
/// ```
/// use dwell_core::{Random, RetryPolicy};
///
/// /// The worst case, always.
/// struct Late;
///
/// impl Random for Late {
///     fn next(&self) -> u64 {
///         u64::MAX
///     }
/// }
///
/// assert_eq!(RetryPolicy::default().delay(0, Late.symmetric()).as_millis(), 5_750);
/// ```
pub trait Random: Send + Sync {
    /// 64 uniformly distributed bits.
    fn next(&self) -> u64;

    /// A number in `-1.0 ..= 1.0`, uniformly distributed.
    fn symmetric(&self) -> f64 {
        let unit = (self.next() >> 11) as f64 / ((1u64 << 53) - 1) as f64;
        unit * 2.0 - 1.0
    }
}

/// A fast generator (splitmix64), seeded. Not for secrets.
///
/// ```
/// use dwell_core::{Random, SeededRandom};
///
/// let (first, second) = (SeededRandom::new(42), SeededRandom::new(42));
/// assert_eq!([first.next(), first.next()], [second.next(), second.next()]);
/// assert!((-1.0..=1.0).contains(&first.symmetric()));
/// ```
#[derive(Debug)]
pub struct SeededRandom(AtomicU64);

impl SeededRandom {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Seeded by the operating system.
    pub fn from_system() -> Self {
        Self::new(RandomState::new().hash_one("dwell"))
    }
}

impl Random for SeededRandom {
    fn next(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        let mut z = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(SeededRandom::new(1).next(), SeededRandom::new(2).next());
    }

    #[test]
    fn symmetric_numbers_stay_within_one_and_reach_both_sides() {
        let random = SeededRandom::new(1);
        let numbers: Vec<_> = (0..1000).map(|_| random.symmetric()).collect();
        assert!(numbers.iter().all(|n| (-1.0..=1.0).contains(n)));
        assert!(numbers.iter().any(|n| *n < -0.9) && numbers.iter().any(|n| *n > 0.9));
    }
}
