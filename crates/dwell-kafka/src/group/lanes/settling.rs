//! Settles records that were handed out.

use super::{Key, Lanes, REACH, State, add, split};
use dwell_core::{LeaseId, LowWater};
use rdkafka::TopicPartitionList;
use std::{collections::BTreeMap, sync::MutexGuard};

impl Lanes {
    /// Locks the lanes to complete records.
    pub(crate) fn settling(&self) -> Settling<'_> {
        Settling { lanes: self, state: self.lock() }
    }

    /// Releases a record, so that revoking its partition does not wait for it: the next owner
    /// handles it. Returns `false` if it must not be released, because the metadata cannot describe
    /// all records that are settled in the partition.
    pub(crate) fn release(&self, lease: LeaseId) -> bool {
        let mut state = self.lock();
        let terse = state.terse;
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get_mut(&key).filter(|lane| lane.holds(lease.fence, offset));
        let Some(lane) = lane else { return true };
        let told = lane.tracker.as_ref().is_none_or(|tracker| tracker.reach() <= REACH as u64 && !terse);
        if told {
            lane.let_go(&self.settled);
        }
        told
    }

    /// Returns the offsets to commit in the transaction that sends what these records became, with
    /// all of them settled. `None` if one of them was lost.
    pub(crate) fn marks_after(&self, leases: &[LeaseId]) -> Option<TopicPartitionList> {
        let state = self.lock();
        let mut trackers: BTreeMap<Key, LowWater> = BTreeMap::new();
        for lease in leases {
            let (key, offset) = split(lease.position);
            let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset))?;
            let tracker = lane.tracker.as_ref().filter(|tracker| tracker.is_open(offset))?;
            trackers.entry(key).or_insert_with(|| tracker.clone()).complete(offset);
        }
        let mut list = TopicPartitionList::new();
        for (key, tracker) in &trackers {
            let inherited = state.lanes[key].inherited();
            add(&mut list, &self.topics[key.0], key.1, (tracker, inherited), state.terse);
        }
        Some(list)
    }

    /// Returns whether a record can still be settled.
    pub(crate) fn is_open(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.and_then(|lane| lane.tracker.as_ref()).is_some_and(|tracker| tracker.is_open(offset))
    }

    /// Returns whether the partition of a record is about to be revoked, or was.
    pub(crate) fn is_leaving(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.is_none_or(|lane| lane.leaving)
    }
}

/// Lock on the lanes for completing records. Nothing is handed out or committed while it is held,
/// so do not hold it for long.
pub(crate) struct Settling<'a> {
    lanes: &'a Lanes,
    state: MutexGuard<'a, State>,
}

impl Settling<'_> {
    /// Completes a record, so that it counts for the next commit. Returns `false` if it was lost.
    pub(crate) fn complete(&mut self, lease: LeaseId) -> bool {
        let Self { lanes, state } = self;
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get_mut(&key).filter(|lane| lane.holds(lease.fence, offset));
        let Some(lane) = lane else { return false };
        let was_full = lanes.is_full(lane);
        let completed = lane.tracker.as_mut().is_some_and(|tracker| tracker.complete(offset));
        if completed {
            lane.completed += 1;
            lane.let_go(&lanes.settled);
        }
        if was_full {
            lanes.stirred.notify_one();
        }
        if completed && std::mem::take(&mut state.sleeps) {
            lanes.completed.notify_one();
        }
        completed
    }
}
