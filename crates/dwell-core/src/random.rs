//! Random numbers as a parameter.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

/// Source of random numbers for jitter and ids. In a simulation, the numbers depend on the seed
/// only.
///
/// ```
/// use dwell_core::{Random, RetryPolicy};
///
/// /// Always the maximum.
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
    /// Returns 64 uniformly distributed bits.
    fn next(&self) -> u64;

    /// Returns a uniformly distributed number from -1 to 1.
    fn symmetric(&self) -> f64 {
        let unit = (self.next() >> 11) as f64 / ((1u64 << 53) - 1) as f64;
        unit * 2.0 - 1.0
    }
}

/// A fast seeded generator (splitmix64). Not for secrets.
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
    /// Creates a generator whose numbers depend on the seed only.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Creates a generator with a seed from the operating system.
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
    fn equal_seeds_give_equal_numbers() {
        let (a, b) = (SeededRandom::new(7), SeededRandom::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(SeededRandom::new(1).next(), SeededRandom::new(2).next());
    }

    #[test]
    fn symmetric_numbers_cover_minus_one_to_one() {
        let random = SeededRandom::new(1);
        let numbers: Vec<_> = (0..1000).map(|_| random.symmetric()).collect();
        assert!(numbers.iter().all(|n| (-1.0..=1.0).contains(n)));
        assert!(numbers.iter().any(|n| *n < -0.9) && numbers.iter().any(|n| *n > 0.9));
    }
}
