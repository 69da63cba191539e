//! What the broker is told, and when.

use super::{Lane, Lanes, State, add};
use rdkafka::TopicPartitionList;
use std::time::Duration;

/// How long what is settled waits for its commit, so that one commit is for many: each costs the broker more than to take in a
/// record, and makes late whatever else it does.
const GATHER: Duration = Duration::from_millis(25);
/// How long a commit does not come through before that is said. Until then it may be a broker that is busy, and from then on
/// somebody wonders why nothing happens.
const SILENCE: Duration = Duration::from_secs(5);
/// Whoever commits looks by himself this often, whatever he is told.
const IDLE: Duration = Duration::from_secs(1);

impl Lanes {
    /// Until a commit is worth while: a moment after something was completed. Not at all if somebody wants to leave.
    pub(in crate::group) fn gather(&self) {
        let is_idle = |state: &mut State| {
            // One that failed is over only when there is nothing left of it, whosever the partition is by now.
            let is_proven = |lane: &Lane| lane.unproven.is_none();
            let is_told = |lane: &Lane| lane.is_told() && is_proven(lane);
            let is_told = state.committing.is_none() && state.lanes.values().all(is_told);
            state.sleeps = !state.hurried && is_told;
            state.sleeps
        };
        drop(self.completed.wait_timeout_while(self.lock(), IDLE, is_idle));
        self.pause(GATHER);
    }

    /// A moment, unless somebody wants to leave.
    pub(in crate::group) fn pause(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |state| !state.hurried));
    }

    /// A moment, whatever happens.
    pub(in crate::group) fn wait(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |_| true));
    }

    /// What is to be committed: the marks that have moved, and those above which something was done. They count as committed
    /// unless [`Self::uncommitted`] says otherwise.
    pub(in crate::group) fn marks(&self) -> Option<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        let mut state = self.lock();
        let terse = state.terse;
        for (key, lane) in &mut state.lanes {
            let Some(tracker) = lane.low_water() else { continue };
            let now = (tracker.commit(), lane.completed);
            if lane.committed == Some(now) {
                continue;
            }
            if add(&mut list, &self.topics[key.0], key.1, (&tracker, lane.inherited()), terse) {
                drop(tracker);
                lane.committed = Some(now);
            }
        }
        if list.count() == 0 {
            // What was left to commit may have gone with its partition.
            if state.committing.take().is_some() {
                self.stirred.notify_one();
            }
            return None;
        }
        state.committing.get_or_insert_with(|| self.clock.elapsed());
        Some(list)
    }

    /// Has what is committed in one partition committed again, unless a commit is under way. While it does not come through,
    /// nothing is handed out.
    pub(crate) fn check_commits(&self) {
        let mut state = self.lock();
        if state.committing.is_some() {
            return;
        }
        if let Some(lane) = state.lanes.values_mut().find(|lane| lane.tracker.is_some() && !lane.leaving) {
            lane.committed = None;
            state.sleeps = false;
            self.completed.notify_one();
        }
    }

    /// A commit has come through.
    pub(in crate::group) fn committed(&self) {
        let mut state = self.lock();
        let was_stuck = state.is_stuck(self.clock.elapsed());
        state.committing = None;
        let mut has_proven = false;
        for lane in state.lanes.values_mut().filter(|lane| lane.committed.is_some()) {
            has_proven |= lane.unproven.take().is_some();
        }
        drop(state);
        self.settled.notify_all();
        if was_stuck || has_proven {
            self.stirred.notify_one();
        }
    }

    /// Says of a commit that does not come through, once, that nothing more is handed out meanwhile. Whether it
    /// does that now.
    pub(in crate::group) fn note_silence(&self) -> bool {
        let mut state = self.lock();
        let now = self.clock.elapsed();
        let is_long = state.committing.is_some_and(|since| now.saturating_sub(since) >= SILENCE);
        let was_said = std::mem::replace(&mut state.said, is_long);
        if is_long && !was_said {
            tracing::warn!(
                topic = self.a_topic(),
                "a commit has not come through to Kafka for {SILENCE:?}: nothing more is handed out until one does"
            );
        }
        is_long && !was_said
    }

    /// A commit of these failed: their marks are to be committed again.
    pub(in crate::group) fn uncommitted(&self, partitions: &TopicPartitionList) {
        let keys = self.keys(partitions);
        let mut state = self.lock();
        for key in keys {
            if let Some(lane) = state.lanes.get_mut(&key) {
                lane.committed = None;
            }
        }
    }

    /// The broker has no room for what is said beside the mark: only the mark from now on.
    pub(in crate::group) fn be_terse(&self) {
        self.lock().terse = true;
    }
}
