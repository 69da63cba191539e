//! The result of a run.

use dwell_core::MessageId;
use serde::Serialize;
use std::fmt;

/// The result of a run: numbers and findings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Transport, with its store if it needs one.
    pub transport: String,
    /// Number of killed workers.
    pub kills: usize,
    /// Seed of the plan.
    pub seed: u64,
    /// Messages whose send was confirmed.
    pub sent: usize,
    /// Their copies, one for each subscription. Each is handled, dead, cancelled, unsure or lost.
    pub copies: usize,
    /// Copies that a handler handled.
    pub handled: usize,
    /// Copies that were given up and are dead letters.
    pub dead: usize,
    /// Copies that were cancelled before they were due.
    pub cancelled: usize,
    /// Copies that have not ended and may have been cancelled: the worker was killed before the
    /// answer, or another subscription had received the message already.
    pub unsure: usize,
    /// Copies that have not ended.
    pub lost: usize,
    /// Runs that started before their due time.
    pub early: usize,
    /// Runs beyond the one that is required for each copy at each count.
    pub duplicates: usize,
    /// Duplicates after a worker that was not killed, but stalled for longer than its lease.
    pub lapsed: usize,
    /// Duplicates that neither a kill nor an expired lease explains.
    pub unexplained: usize,
    /// Other broken promises: decreasing counts, a run after a cancellation, messages left in the
    /// store.
    pub broken: usize,
    /// Findings as text, at most 20.
    pub findings: Vec<Finding>,
}

/// Maximum number of findings that are listed.
const MOST_FINDINGS: usize = 20;

impl Report {
    /// Whether every promise was kept.
    pub fn is_ok(&self) -> bool {
        self.lost + self.early + self.unexplained + self.broken == 0
    }

    /// Adds a broken promise.
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

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind of promise.
    pub kind: Kind,
    /// Message id; `None` if the finding is not about one message.
    pub id: Option<MessageId>,
    /// Description.
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

/// Kind of a broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A confirmed message has not ended.
    Lost,
    /// A handler started before the due time.
    Early,
    /// A handler ran again without an explanation.
    Unexplained,
    /// Any other promise.
    Broken,
}
