//! What a commit says beside its mark: which records above it are done as well. Whoever gets the partition next, after a
//! crash or a rebalance, does not do them again.
//!
//! It is the *metadata* of the committed offset, a text that Kafka keeps and does not read: `dwell1:` and hexadecimal
//! digits, each of which stands for four offsets, the first for the four that begin with the mark, its highest bit for the
//! first of them.

use std::collections::BTreeSet;

const START: &str = "dwell1:";
/// Kafka keeps 4 096 bytes of it, unless told otherwise.
const DIGITS: usize = 4_000;
/// How far above the mark it tells of.
pub(crate) const REACH: usize = DIGITS * 4;

/// In words that fit; empty if nothing above the mark is done. What is out of reach is left out.
pub(super) fn write(mark: u64, done: impl Iterator<Item = u64>) -> String {
    let mut digits = vec![];
    for offset in done {
        let at = offset.checked_sub(mark).and_then(|at| usize::try_from(at).ok());
        let Some(at) = at.filter(|at| *at < REACH) else { continue };
        if digits.len() <= at / 4 {
            digits.resize(at / 4 + 1, 0_u8);
        }
        digits[at / 4] |= 0b1000 >> (at % 4);
    }
    if digits.is_empty() {
        return String::new();
    }
    let digit = |digit: u8| char::from_digit(digit.into(), 16).unwrap_or('0');
    START.chars().chain(digits.into_iter().map(digit)).collect()
}

/// The offsets that are done; none if it is somebody else's text.
pub(crate) fn read(mark: u64, text: &str) -> BTreeSet<u64> {
    let Some(digits) = text.strip_prefix(START) else { return BTreeSet::new() };
    let digits: Option<Vec<_>> = digits.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.unwrap_or_default();
    let offsets = digits.into_iter().zip((mark..).step_by(4)).flat_map(|(digit, first)| {
        (0..4).filter(move |bit| digit & (0b1000 >> bit) != 0).map(move |bit| first + bit)
    });
    offsets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_up_to_its_reach() {
        for done in [vec![], vec![101], vec![101, 104, 107, 108, 5_000], vec![100 + REACH as u64 - 1]] {
            let text = write(100, done.iter().copied());
            assert!(text.len() <= 4_096);
            assert_eq!(read(100, &text), BTreeSet::from_iter(done));
        }
        assert_eq!(write(100, [100 + REACH as u64].into_iter()), "");
        assert_eq!(write(100, [101, 104].into_iter()), "dwell1:48");
    }

    #[test]
    fn what_others_wrote_says_nothing() {
        for text in ["", "hello", "dwell2:ff", "dwell1:xyz"] {
            assert_eq!(read(7, text), BTreeSet::new(), "{text}");
        }
    }
}
