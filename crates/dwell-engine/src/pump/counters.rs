//! What a pump has done, in numbers: raised once per batch, read by anyone.

use dwell_core::Outcome;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a subscription's pump has done since it was started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, shared.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds a batch's numbers.
            pub(crate) fn add(&self, counts: &Counts) {
                $(if counts.$name > 0 {
                    self.$name.fetch_add(counts.$name, Relaxed);
                })*
            }

            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Deliveries received.
    received,
    /// Handled with success.
    handled,
    /// Deferred by a handler.
    deferred,
    /// Failed, to be tried again.
    failed,
    /// Given back as they came.
    released,
    /// Rejected on purpose.
    rejected,
    /// Unreadable, or of a type that nobody handles.
    invalid,
    /// Given up after their budget.
    exhausted,
    /// Given up because they took their worker down.
    poison,
    /// Left alone, being of a type that nobody handles.
    skipped,
    /// Given up with nowhere to go, because `discard` was asked for.
    discarded,
    /// Lost to another worker before they were settled.
    lost,
    /// Runs that exceeded their timeout.
    timed_out,
    /// Settlements that failed and were tried again.
    settlements_failed,
    /// Receives that failed.
    receives_failed,
    /// Performers that ended unexpectedly and were started again.
    restarts,
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
}
