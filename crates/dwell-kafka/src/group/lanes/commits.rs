//! What is committed, and when.

use super::{Lane, Lanes, State, add};
use rdkafka::TopicPartitionList;
use std::time::Duration;

/// How long settled records wait for their commit, so that one commit covers many. A commit costs
/// the broker more than accepting a record, and delays its other work.
const GATHER: Duration = Duration::from_millis(25);
/// Duration of a failing commit after which it is logged. Until then the broker may only be busy.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval at which the committing thread checks for work without being notified.
const IDLE: Duration = Duration::from_secs(1);

impl Lanes {
    /// Waits until a commit is worthwhile: a moment after something was completed. Returns at once
    /// if the member wants to leave.
    pub(in crate::group) fn gather(&self) {
        let is_idle = |state: &mut State| {
            // A failed commit is pending until nothing of it is left, even if its partition was
            // removed.
            let is_proven = |lane: &Lane| lane.unproven.is_none();
            let is_told = |lane: &Lane| lane.is_told() && is_proven(lane);
            let is_told = state.committing.is_none() && state.lanes.values().all(is_told);
            state.sleeps = !state.hurried && is_told;
            state.sleeps
        };
        drop(self.completed.wait_timeout_while(self.lock(), IDLE, is_idle));
        self.pause(GATHER);
    }

    /// Waits for this time, unless the member wants to leave.
    pub(in crate::group) fn pause(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |state| !state.hurried));
    }

    /// Waits for this time.
    pub(in crate::group) fn wait(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |_| true));
    }

    /// Returns what to commit: marks that have moved, and marks above which something was settled.
    /// They count as committed unless [`Self::uncommitted`] is called.
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
            // What was left to commit may have been removed with its partition.
            if state.committing.take().is_some() {
                self.stirred.notify_one();
            }
            return None;
        }
        state.committing.get_or_insert_with(|| self.clock.elapsed());
        Some(list)
    }

    /// Requests another commit of the committed offset of one partition, unless a commit is under
    /// way. Until it succeeds, nothing is handed out.
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

    /// Notes that a commit has succeeded.
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

    /// Logs once that a commit does not succeed, so that nothing is handed out. Returns whether it
    /// was logged now.
    pub(in crate::group) fn note_silence(&self) -> bool {
        let mut state = self.lock();
        let now = self.clock.elapsed();
        let is_long = state.committing.is_some_and(|since| now.saturating_sub(since) >= SILENCE);
        let was_said = std::mem::replace(&mut state.said, is_long);
        if is_long && !was_said {
            tracing::warn!(
                topic = self.a_topic(),
                "commit has not succeeded for {SILENCE:?}; handing out no more messages until one does"
            );
        }
        is_long && !was_said
    }

    /// Notes that a commit has failed: the marks of these partitions are committed again.
    pub(in crate::group) fn uncommitted(&self, partitions: &TopicPartitionList) {
        let keys = self.keys(partitions);
        let mut state = self.lock();
        for key in keys {
            if let Some(lane) = state.lanes.get_mut(&key) {
                lane.committed = None;
            }
        }
    }

    /// Omits the metadata from now on, because the broker has no room for it.
    pub(in crate::group) fn be_terse(&self) {
        self.lock().terse = true;
    }
}
