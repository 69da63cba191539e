//! Numbers over one world, or over many.

use super::track::End;
use crate::trace::{Ending, Fault};
use std::fmt;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends that returned `Ok`.
    pub sent: u64,
    /// Runs of handlers.
    pub runs: u64,
    /// Messages that a handler handled, once for each subscription and each time.
    pub handled: u64,
    /// Runs that deferred.
    pub deferred: u64,
    /// Runs that failed, or took too long.
    pub failed: u64,
    /// Messages given up into a channel.
    pub dead: u64,
    /// Messages given up without a channel, or left alone, because a setting says so.
    pub discarded: u64,
    /// Messages cancelled, or replaced while they waited.
    pub cancelled: u64,
    /// Messages that could never be sent on.
    pub parked: u64,
    /// Dead letters that were sent back.
    pub replayed: u64,
    /// Runs that only a fault explains.
    pub duplicates: u64,
    /// Messages that never came to an end.
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

    /// How often something was made to go wrong.
    pub fn faults(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// Adds another world's.
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
