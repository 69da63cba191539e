//! Counting tests.

use std::fmt;
use std::iter::Sum;
use std::ops::AddAssign;

/// Numbers of tests by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) const PASSED: Tally = Tally { passed: 1, failed: 0, skipped: 0 };
    pub(crate) const FAILED: Tally = Tally { passed: 0, failed: 1, skipped: 0 };
    pub(crate) const SKIPPED: Tally = Tally { passed: 0, failed: 0, skipped: 1 };

    /// Reads the last line of Rust's test harness. An ignored test counts as skipped.
    pub(crate) fn of_line(line: &str) -> Option<Tally> {
        let (_, counts) = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?;
        let count = |of: &str| {
            let part = counts.split(';').find_map(|part| part.trim().strip_suffix(of))?;
            part.trim().parse().ok()
        };
        Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
    }

    /// Returns the counts without zeros: `12 passed, 1 skipped`.
    pub(crate) fn short(self) -> String {
        let counts = [(self.passed, "passed"), (self.failed, "failed"), (self.skipped, "skipped")];
        let parts =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}"));
        let text = parts.collect::<Vec<_>>().join(", ");
        if text.is_empty() { "none".to_owned() } else { text }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Tally::default(), |mut sum, tally| {
            sum += tally;
            sum
        })
    }
}

/// The line that ends a run; scripts read it.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_test_harness_is_counted() {
        let ok =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 7 filtered out; finished in 0.01s";
        assert_eq!(Tally::of_line(ok), Some(Tally { passed: 12, failed: 0, skipped: 3 }));
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Tally::of_line(failed), Some(Tally { passed: 1, failed: 2, skipped: 0 }));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in
            ["", "running 3 tests", "test result: ok", "test tally::counts ... ok", "test result: ok. x"]
        {
            assert_eq!(Tally::of_line(line), None, "{line}");
        }
    }

    #[test]
    fn the_counts_line_always_has_all_three() {
        let sum: Tally = [Tally::PASSED, Tally::PASSED, Tally::SKIPPED].into_iter().sum();
        assert_eq!(sum.to_string(), "2 passed, 0 failed, 1 skipped");
        assert_eq!(sum.short(), "2 passed, 1 skipped");
        assert_eq!(Tally::default().short(), "none");
    }
}
