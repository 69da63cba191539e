//! What a pump has done, in numbers: raised once per batch, read by anyone.

use dwell_core::Outcome;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a subscription's pump has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Deliveries received.
    pub received: u64,
    /// Handled with success.
    pub handled: u64,
    /// Deferred by a handler.
    pub deferred: u64,
    /// Failed, to be tried again.
    pub failed: u64,
    /// Given back as they came.
    pub released: u64,
    /// Rejected on purpose.
    pub rejected: u64,
    /// Unreadable, or of a type that nobody handles.
    pub invalid: u64,
    /// Given up after their budget.
    pub exhausted: u64,
    /// Given up because they took their worker down.
    pub poison: u64,
    /// Left alone, being of a type that nobody handles.
    pub skipped: u64,
    /// Given up with nowhere to go, because `discard` was asked for.
    pub discarded: u64,
    /// Lost to another worker before they were settled.
    pub lost: u64,
    /// Runs that exceeded their timeout.
    pub timed_out: u64,
    /// Settlements that failed and were tried again.
    pub settlements_failed: u64,
    /// Receives that failed.
    pub receives_failed: u64,
    /// Performers that ended unexpectedly and were started again.
    pub restarts: u64,
}

impl Counts {
    /// All that were given up for good.
    pub fn dead(&self) -> u64 {
        self.rejected + self.invalid + self.exhausted + self.poison
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Handled | Outcome::Forwarded => &mut self.handled,
            Outcome::Deferred => &mut self.deferred,
            Outcome::Failed => &mut self.failed,
            Outcome::Released => &mut self.released,
            Outcome::Rejected | Outcome::Parked => &mut self.rejected,
            Outcome::Invalid => &mut self.invalid,
            Outcome::Exhausted => &mut self.exhausted,
            Outcome::Poison => &mut self.poison,
            Outcome::Skipped => &mut self.skipped,
        } += 1;
    }

    fn fields(&self) -> [u64; FIELDS] {
        [
            self.received,
            self.handled,
            self.deferred,
            self.failed,
            self.released,
            self.rejected,
            self.invalid,
            self.exhausted,
            self.poison,
            self.skipped,
            self.discarded,
            self.lost,
            self.timed_out,
            self.settlements_failed,
            self.receives_failed,
            self.restarts,
        ]
    }
}

const FIELDS: usize = 16;

/// The same, shared.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; FIELDS]);

impl Counters {
    /// Adds a batch's numbers.
    pub(crate) fn add(&self, counts: &Counts) {
        for (counter, count) in self.0.iter().zip(counts.fields()) {
            if count > 0 {
                counter.fetch_add(count, Relaxed);
            }
        }
    }

    pub(crate) fn read(&self) -> Counts {
        let [
            received,
            handled,
            deferred,
            failed,
            released,
            rejected,
            invalid,
            exhausted,
            poison,
            skipped,
            discarded,
            lost,
            timed_out,
            settlements_failed,
            receives_failed,
            restarts,
        ] = std::array::from_fn(|index| self.0[index].load(Relaxed));
        Counts {
            received,
            handled,
            deferred,
            failed,
            released,
            rejected,
            invalid,
            exhausted,
            poison,
            skipped,
            discarded,
            lost,
            timed_out,
            settlements_failed,
            receives_failed,
            restarts,
        }
    }
}
