//! What was handed out, and what becomes of it.

use super::{Key, Lanes, REACH, State, add, split};
use dwell_core::{LeaseId, LowWater};
use rdkafka::TopicPartitionList;
use std::{collections::BTreeMap, sync::MutexGuard};

impl Lanes {
    /// For who completes what was handed out.
    pub(crate) fn settling(&self) -> Settling<'_> {
        Settling { lanes: self, state: self.lock() }
    }

    /// Lets go of it, so that nobody waits for it before its partition is given up: whoever gets it next does it. `false` if
    /// it must not be let go of, because what is done in that partition is more than can be told of.
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

    /// What is to be committed together with what these were turned into: all of them done. `None` if one of them is not
    /// ours any more.
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

    /// Whether it is still ours to settle.
    pub(crate) fn is_open(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.and_then(|lane| lane.tracker.as_ref()).is_some_and(|tracker| tracker.is_open(offset))
    }

    /// Whether its partition is about to go to another member, or has gone.
    pub(crate) fn is_leaving(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.is_none_or(|lane| lane.leaving)
    }
}

/// Who completes what was handed out. Nothing is handed out or committed meanwhile: it is not to be held for long.
pub(crate) struct Settling<'a> {
    lanes: &'a Lanes,
    state: MutexGuard<'a, State>,
}

impl Settling<'_> {
    /// Counts for the commit from now on. `false` if it is not ours any more.
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
