//! Seeded randomness, the source of everything drawn in a world.

use dwell_core::{Random, SeededRandom};
use std::time::Duration;

/// Independent dice: drawing from them does not affect others.
#[derive(Debug)]
pub(crate) struct Dice {
    seed: u64,
    random: SeededRandom,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give similar worlds.
        let seed = SeededRandom::new(seed).next();
        Self { seed, random: SeededRandom::new(seed) }
    }

    /// Returns other dice, which depend only on the name and not on the number of draws so far.
    pub(crate) fn fork(&self, name: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self::new(name.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    pub(crate) fn next(&self) -> u64 {
        self.random.next()
    }

    /// Returns a number below `n`, which must be above zero.
    pub(crate) fn below(&self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn size(&self, low: usize, high: usize) -> usize {
        self.between(low as u64, high as u64) as usize
    }

    pub(crate) fn chance(&self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1u64 << 53) as f64
    }

    pub(crate) fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Returns one of these values, with a probability proportional to its weight.
    pub(crate) fn weighted<T: Copy>(&self, of: &[(u32, T)]) -> T {
        let total: u64 = of.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut at = self.below(total.max(1));
        for (weight, value) in of {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return *value,
            }
        }
        of[0].1
    }

    /// Returns a duration from `low` to `high` milliseconds, in which each order of magnitude is
    /// equally likely.
    pub(crate) fn millis(&self, low: u64, high: u64) -> Duration {
        let (low, high) = (low.max(1), high.max(1));
        let doublings = (high / low).max(1).ilog2();
        let base = low << self.between(0, u64::from(doublings));
        Duration::from_millis(self.between(base, (base * 2).min(high).max(base)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_is_independent_of_draws_from_its_parent() {
        let (a, b) = (Dice::new(7), Dice::new(7));
        a.next();
        assert_eq!(a.fork("x").next(), b.fork("x").next());
        assert_ne!(a.fork("x").next(), a.fork("y").next());
    }

    #[test]
    fn durations_cover_exactly_their_range() {
        let dice = Dice::new(1);
        let all: Vec<_> = (0..1000).map(|_| dice.millis(1, 3_600_000).as_millis()).collect();
        assert!(all.iter().all(|millis| (1..=3_600_000).contains(millis)));
        assert!(all.iter().any(|millis| *millis < 10) && all.iter().any(|millis| *millis > 1_000_000));
    }
}
