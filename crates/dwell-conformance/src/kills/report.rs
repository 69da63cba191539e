//! What came of a run.

use dwell_core::MessageId;
use serde::Serialize;
use std::fmt;

/// What came of a run, in numbers, with what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The transport, with its store if it needs one.
    pub transport: String,
    /// Workers that were killed.
    pub kills: usize,
    /// What the plan was made of.
    pub seed: u64,
    /// Messages whose send was confirmed.
    pub sent: usize,
    /// What they came to: one copy for each subscription. Each is handled, dead, cancelled, unsure or lost.
    pub copies: usize,
    /// Copies that a handler handled.
    pub handled: usize,
    /// Copies that were given up, and lie among the dead letters.
    pub dead: usize,
    /// Copies that were cancelled before they were due.
    pub cancelled: usize,
    /// Copies that came to no end, and may have been cancelled: by somebody who was killed before the answer, or in one
    /// subscription while another had them.
    pub unsure: usize,
    /// Copies that came to no end.
    pub lost: usize,
    /// Runs that started before their time.
    pub early: usize,
    /// Runs beyond the one that is owed to each copy at each count.
    pub duplicates: usize,
    /// Those of them whose message was lost by a worker that was not killed, but stood still for longer than its lease.
    pub lapsed: usize,
    /// Those of them that neither a kill nor a lease that ran out explains.
    pub unexplained: usize,
    /// Other promises broken: a count that went down, a run after a cancellation, something left behind.
    pub broken: usize,
    /// What was found, in words; not more than a person reads.
    pub findings: Vec<Finding>,
}

/// More than this nobody reads.
const MOST_FINDINGS: usize = 20;

impl Report {
    /// Whether every promise was kept.
    pub fn is_ok(&self) -> bool {
        self.lost + self.early + self.unexplained + self.broken == 0
    }

    /// Counts a promise as broken.
    pub fn add(&mut self, finding: Finding) {
        *match finding.kind {
            Kind::Lost => &mut self.lost,
            Kind::Early => &mut self.early,
            Kind::Unexplained => &mut self.unexplained,
            Kind::Broken => &mut self.broken,
        } += 1;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, copies, handled, dead, cancelled, unsure, .. } = self;
        writeln!(f, "{}: {} kills, seed {}", self.transport, self.kills, self.seed)?;
        writeln!(
            f,
            "{sent} sent, as {copies} copies: {handled} handled, {dead} dead, {cancelled} cancelled, {unsure} unsure"
        )?;
        writeln!(
            f,
            "{} lost, {} early, {} duplicates ({} by lapsed leases, {} not explained), {} other promises broken",
            self.lost, self.early, self.duplicates, self.lapsed, self.unexplained, self.broken
        )?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// One promise broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which.
    pub kind: Kind,
    /// For which message; none if it is not about one.
    pub id: Option<MessageId>,
    /// How.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Lost => "LOST",
            Kind::Early => "EARLY",
            Kind::Unexplained => "UNEXPLAINED",
            Kind::Broken => "BROKEN",
        };
        match &self.id {
            Some(id) => write!(f, "{kind} {id}: {}", self.text),
            None => write!(f, "{kind} {}", self.text),
        }
    }
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What was confirmed came to no end.
    Lost,
    /// A handler started before its time.
    Early,
    /// A handler ran once more, and nothing explains it.
    Unexplained,
    /// Any other.
    Broken,
}
