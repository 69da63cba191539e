//! Numbers of events in a pump. They are increased once per batch.

use dwell_core::Outcome;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers of events in a pump since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Shared counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds the numbers of a batch.
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
    /// Messages handled successfully.
    handled,
    /// Messages deferred by a handler.
    deferred,
    /// Failed runs that are retried.
    failed,
    /// Messages returned unchanged.
    released,
    /// Messages rejected by a handler.
    rejected,
    /// Messages that are unreadable or without a handler for their type.
    invalid,
    /// Messages given up because their budget was used up.
    exhausted,
    /// Messages given up because they took down their worker.
    poison,
    /// Messages skipped because no handler exists for their type.
    skipped,
    /// Messages given up and discarded, because the settings request it.
    discarded,
    /// Messages lost to another worker before they were settled.
    lost,
    /// Runs that exceeded their timeout.
    timed_out,
    /// Settlements that failed and are retried.
    settlements_failed,
    /// Receives that failed.
    receives_failed,
    /// Restarts of performers after a failure.
    restarts,
}

impl Counts {
    /// Returns the number of messages that were given up.
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
