//! Totals of one world or of many.

use super::track::End;
use crate::trace::{Ending, Fault};
use std::fmt;

/// Totals of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends that returned `Ok`.
    pub sent: u64,
    /// Runs of handlers.
    pub runs: u64,
    /// Handled messages, counted per subscription and per time.
    pub handled: u64,
    /// Runs that deferred.
    pub deferred: u64,
    /// Runs that failed or timed out.
    pub failed: u64,
    /// Messages moved to a dead-letter or invalid channel.
    pub dead: u64,
    /// Messages given up without a channel, or skipped, according to a setting.
    pub discarded: u64,
    /// Messages cancelled, or replaced while pending.
    pub cancelled: u64,
    /// Messages parked because they could not be forwarded.
    pub parked: u64,
    /// Replayed dead letters.
    pub replayed: u64,
    /// Runs explained only by a fault.
    pub duplicates: u64,
    /// Messages that never ended.
    pub lost: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Tally {
    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    pub(super) fn end(&mut self, end: End) {
        *match end {
            End::Handled => &mut self.handled,
            End::Dead => &mut self.dead,
            End::Discarded => &mut self.discarded,
            End::Cancelled | End::Replaced => &mut self.cancelled,
            End::Parked => &mut self.parked,
        } += 1;
    }

    pub(super) fn ending(&mut self, ending: Ending) {
        match ending {
            Ending::Deferred(_) => self.deferred += 1,
            Ending::Failed | Ending::TimedOut => self.failed += 1,
            _ => {}
        }
    }

    /// Returns the number of injected faults.
    pub fn faults(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds the totals of another world.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.runs += other.runs;
        self.handled += other.handled;
        self.deferred += other.deferred;
        self.failed += other.failed;
        self.dead += other.dead;
        self.discarded += other.discarded;
        self.cancelled += other.cancelled;
        self.parked += other.parked;
        self.replayed += other.replayed;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "messages: {} sent, {} handled, {} dead, {} cancelled, {} discarded, {} parked, {} replayed",
            self.sent, self.handled, self.dead, self.cancelled, self.discarded, self.parked, self.replayed
        )?;
        writeln!(f, "runs: {}, of which {} deferred, {} retried", self.runs, self.deferred, self.failed)?;
        let faults: Vec<_> = Fault::ALL
            .into_iter()
            .zip(self.faults)
            .filter(|(_, count)| *count > 0)
            .map(|(fault, count)| format!("{count} {fault}"))
            .collect();
        writeln!(f, "faults: {}", if faults.is_empty() { "none".into() } else { faults.join(", ") })
    }
}
