//! The results.

use serde::Serialize;
use std::fmt;

/// Part of the promises that a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub enum Group {
    /// Declared capabilities work, and undeclared ones are refused.
    Declaring,
    /// Messages arrive unchanged at the right subscriptions.
    Carrying,
    /// Deliveries are settled once.
    Settling,
    /// Counts and limits are exact.
    Budgets,
    /// Rejected messages are kept and can be replayed.
    Rejecting,
    /// Delays, and control over pending messages.
    Waiting,
    /// Starting, stopping and crashing.
    Living,
    /// Recovery from faults of the network and the server.
    Connecting,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The promise was kept.
    Pass,
    /// The capability is declared absent, and the transport refused it.
    Refused,
    /// The promise was broken.
    Fail,
    /// Excluded by name, or the server cannot be restarted.
    Skipped,
}

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// Column.
    pub transport: String,
    /// Row.
    pub case: String,
    /// Group of the row.
    pub group: Group,
    /// Result.
    #[serde(rename = "result")]
    pub verdict: Verdict,
    /// The reason if it did not pass; the measurements if it did.
    pub detail: String,
}

/// One column of the matrix, in the order of the rows. Inapplicable cases are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Cells.
    pub cases: Vec<CaseReport>,
    /// Number of cases that the filters excluded.
    pub filtered_out: usize,
}

impl Report {
    /// Returns the number of cases with this result.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cases.iter().filter(|case| case.verdict == verdict).count()
    }

    /// Whether no case failed.
    pub fn is_ok(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }
}
