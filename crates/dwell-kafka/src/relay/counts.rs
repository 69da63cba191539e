//! What a relay has done, for those who watch over it.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Counts as they go. Shared, and never reset.
#[derive(Debug, Default)]
pub struct Counts {
    forwarded: AtomicU64,
    shelved: AtomicU64,
    parked: AtomicU64,
    held: AtomicU64,
    overstayed: AtomicU64,
    waiting: AtomicU64,
    late: AtomicU64,
    latest: AtomicU64,
}

/// The counts of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Records that went to their target.
    pub forwarded: u64,
    /// Records that went to another level.
    pub shelved: u64,
    /// Records that can never be sent on.
    pub parked: u64,
    /// Records that wait again because their target was away.
    pub held: u64,
    /// Records whose level was longer than the time that they had: late, by who put them there.
    pub overstayed: u64,
    /// Records that wait in memory for their last stretch.
    pub waiting: u64,
    /// How late all forwarded records were, added up.
    pub lateness: Duration,
    /// How late the latest of them was.
    pub latest: Duration,
}

impl Counts {
    /// The counts of this moment.
    pub fn tally(&self) -> Tally {
        let of = |count: &AtomicU64| count.load(Relaxed);
        Tally {
            forwarded: of(&self.forwarded),
            shelved: of(&self.shelved),
            parked: of(&self.parked),
            held: of(&self.held),
            overstayed: of(&self.overstayed),
            waiting: of(&self.waiting),
            lateness: Duration::from_millis(of(&self.late)),
            latest: Duration::from_millis(of(&self.latest)),
        }
    }

    pub(super) fn forwarded(&self, late: Duration) {
        let late = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.forwarded.fetch_add(1, Relaxed);
        self.late.fetch_add(late, Relaxed);
        self.latest.fetch_max(late, Relaxed);
    }

    pub(super) fn shelved(&self) {
        self.shelved.fetch_add(1, Relaxed);
    }

    pub(super) fn parked(&self) {
        self.parked.fetch_add(1, Relaxed);
    }

    pub(super) fn held(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    pub(super) fn overstayed(&self) {
        self.overstayed.fetch_add(1, Relaxed);
    }

    pub(super) fn waiting(&self, count: usize) {
        self.waiting.store(count as u64, Relaxed);
    }
}
