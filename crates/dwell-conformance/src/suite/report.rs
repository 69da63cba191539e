//! What came out.

use serde::Serialize;
use std::fmt;

/// Which part of the promises a case belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub enum Group {
    /// What is declared is there, and what is not is refused.
    Declaring,
    /// Messages arrive, whole, where they should.
    Carrying,
    /// Deliveries are settled once.
    Settling,
    /// Counts hold.
    Budgets,
    /// What is given up is kept and can be replayed.
    Rejecting,
    /// Delays, and control over what waits.
    Waiting,
    /// Starting, stopping, crashing.
    Living,
    /// Recovery from faults of the network and the server.
    Connecting,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How a case came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The promise was kept.
    Pass,
    /// Declared absent, and seen to be refused.
    Refused,
    /// The promise was broken.
    Fail,
    /// Left out by name, or the server was not ours to restart.
    Skipped,
}

/// One cell of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseReport {
    /// The column.
    pub transport: String,
    /// The row.
    pub case: String,
    /// The rows that it stands among.
    pub group: Group,
    /// The cell.
    #[serde(rename = "result")]
    pub verdict: Verdict,
    /// Why, where it did not pass; what was measured, where it did.
    pub detail: String,
}

/// One column of the matrix, in the order of the rows. A case without meaning for the transport is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The cells.
    pub cases: Vec<CaseReport>,
    /// How many cases no filter asked for.
    pub filtered_out: usize,
}

impl Report {
    /// How many came out so.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cases.iter().filter(|case| case.verdict == verdict).count()
    }

    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        self.count(Verdict::Fail) == 0
    }
}
