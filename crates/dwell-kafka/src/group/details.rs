//! The metadata of a committed offset: which records above the mark are settled as well. The next
//! owner of the partition, after a crash or a rebalance, does not handle them again.
//!
//! Kafka stores the metadata as opaque text. It is `dwell1:` followed by hexadecimal digits. Each
//! digit stands for four offsets, the first digit for the four that begin with the mark; its
//! highest bit is the first of them.

use std::collections::BTreeSet;

const START: &str = "dwell1:";
/// Kafka stores 4096 bytes of it by default.
const DIGITS: usize = 4_000;
/// Number of offsets above the mark that the metadata can describe.
pub(crate) const REACH: usize = DIGITS * 4;

/// Writes the metadata; empty if nothing above the mark is settled. Offsets out of reach are
/// omitted.
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

/// Reads the settled offsets; none if the metadata was not written by Dwell.
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
    fn settled_offsets_are_read_back_up_to_the_reach() {
        for done in [vec![], vec![101], vec![101, 104, 107, 108, 5_000], vec![100 + REACH as u64 - 1]] {
            let text = write(100, done.iter().copied());
            assert!(text.len() <= 4_096);
            assert_eq!(read(100, &text), BTreeSet::from_iter(done));
        }
        assert_eq!(write(100, [100 + REACH as u64].into_iter()), "");
        assert_eq!(write(100, [101, 104].into_iter()), "dwell1:48");
    }

    #[test]
    fn foreign_metadata_is_ignored() {
        for text in ["", "hello", "dwell2:ff", "dwell1:xyz"] {
            assert_eq!(read(7, text), BTreeSet::new(), "{text}");
        }
    }
}
