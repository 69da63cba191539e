//! Assigned, revoked and lost partitions.

use super::{Lane, Lanes, State, details};
use crate::{group::watcher::Watcher, record::Record};
use rdkafka::{TopicPartitionList, consumer::base_consumer::PartitionQueue};
use std::{sync::PoisonError, time::Duration};

impl Lanes {
    /// Adds partitions that were assigned to this member.
    pub(in crate::group) fn assigned(&self, partitions: &TopicPartitionList) {
        let mut state = self.lock();
        for key in self.keys(partitions) {
            state.epoch += 1;
            let epoch = state.epoch;
            state.lanes.insert(key, Lane::new(epoch));
        }
    }

    /// Gives a queue to each partition that has none. Returns whether any partition got one.
    pub(in crate::group) fn open(
        &self,
        mut split: impl FnMut(&str, i32) -> Option<PartitionQueue<Watcher>>,
    ) -> bool {
        let mut state = self.lock();
        let mut any = false;
        for ((topic, partition), lane) in &mut state.lanes {
            if lane.queue.is_none() {
                lane.queue = split(&self.topics[*topic], *partition);
                any |= lane.queue.is_some();
                self.stirred.notify_one();
            }
        }
        any
    }

    /// Adds a record that arrived before its partition had a queue.
    pub(in crate::group) fn came_early(&self, topic: &str, record: Record) {
        let Some(index) = self.topics.iter().position(|known| known == topic) else { return };
        if let Some(lane) = self.lock().lanes.get_mut(&(index, record.partition))
            && !lane.repeats(&record)
        {
            lane.waiting.push_back(record);
        }
        self.stirred.notify_one();
    }

    /// Returns partitions whose former owner may have settled more than its mark shows. A partition
    /// is omitted until it has a queue, because records that arrived another way precede those in
    /// the queue.
    pub(in crate::group) fn unknown(&self) -> Option<TopicPartitionList> {
        let state = self.lock();
        let mut list = TopicPartitionList::new();
        for (key, _) in state.lanes.iter().filter(|(_, lane)| lane.done.is_none() && lane.queue.is_some()) {
            list.add_partition(&self.topics[key.0], key.1);
        }
        (list.count() > 0).then_some(list)
    }

    /// Takes in the committed offsets of these partitions and their metadata. With `proves`,
    /// records are handed out only after a commit of the same offset has succeeded: a member that
    /// gets partitions after an outage may be outside its group again, and would send its backlog
    /// in vain. Both happen in one step, because such a commit repeats the metadata.
    pub(in crate::group) fn learn(&self, committed: &TopicPartitionList, proves: bool) {
        let mut state = self.lock();
        for element in &committed.elements() {
            let topic = self.topics.iter().position(|known| known == element.topic());
            let lane = topic.and_then(|topic| state.lanes.get_mut(&(topic, element.partition())));
            let mark = element.offset().to_raw().and_then(|offset| u64::try_from(offset).ok());
            if let Some(lane) = lane {
                let done = mark.map(|mark| (mark, details::read(mark, element.metadata())));
                lane.done = Some(done.unwrap_or_default());
                if proves {
                    lane.unproven = mark;
                }
            }
        }
        if proves {
            state.sleeps = false;
            self.completed.notify_one();
        }
        self.stirred.notify_one();
    }

    /// Stops handing out records of partitions that are about to be revoked.
    pub(in crate::group) fn leave(&self, partitions: &TopicPartitionList) {
        let mut state = self.lock();
        for key in self.keys(partitions) {
            if let Some(lane) = state.lanes.get_mut(&key) {
                lane.leaving = true;
            }
        }
        state.departures += 1;
        self.stirred.notify_one();
        // The mark may have moved although nothing was completed.
        state.sleeps = false;
        self.completed.notify_one();
    }

    /// Returns how often partitions were revoked. A caller that holds records for long gives back
    /// those of leaving partitions; otherwise the revocation waits for them in vain.
    pub(crate) fn departures(&self) -> u64 {
        self.lock().departures
    }

    /// Waits until no record of the partitions is being handled and, if `committed`, the broker has
    /// confirmed the commit. Returns whether that happened within `patience`.
    pub(in crate::group) fn wait_for(
        &self,
        partitions: &TopicPartitionList,
        committed: bool,
        patience: Duration,
    ) -> bool {
        let keys = self.keys(partitions);
        let busy = |state: &mut State| {
            let is_told = |lane: &Lane| state.committing.is_none() && lane.is_told();
            let busy = |lane: &Lane| lane.busy > 0 || committed && !is_told(lane);
            !state.hurried && keys.iter().filter_map(|key| state.lanes.get(key)).any(busy)
        };
        let waited = self.settled.wait_timeout_while(self.lock(), patience, busy);
        let (_state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }

    /// Removes partitions that another member has by now. Their leases are stale.
    pub(in crate::group) fn gone(&self, partitions: &TopicPartitionList) {
        let keys = self.keys(partitions);
        let mut state = self.lock();
        let gone: Vec<_> = keys.iter().filter_map(|key| state.lanes.remove(key)).collect();
        state.departures += 1;
        drop(state);
        drop(gone);
        self.stirred.notify_one();
    }
}
