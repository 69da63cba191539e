//! Partitions that come and go.

use super::{Lane, Lanes, State, details};
use crate::{group::watcher::Watcher, record::Record};
use rdkafka::{TopicPartitionList, consumer::base_consumer::PartitionQueue};
use std::{sync::PoisonError, time::Duration};

impl Lanes {
    /// These partitions are ours from now on.
    pub(in crate::group) fn assigned(&self, partitions: &TopicPartitionList) {
        let mut state = self.lock();
        for key in self.keys(partitions) {
            state.epoch += 1;
            let epoch = state.epoch;
            state.lanes.insert(key, Lane::new(epoch));
        }
    }

    /// Gives a queue to each partition that has none. Whether any got one.
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

    /// A record that came before its partition had a queue.
    pub(in crate::group) fn came_early(&self, topic: &str, record: Record) {
        let Some(index) = self.topics.iter().position(|known| known == topic) else { return };
        if let Some(lane) = self.lock().lanes.get_mut(&(index, record.partition))
            && !lane.repeats(&record)
        {
            lane.waiting.push_back(record);
        }
        self.stirred.notify_one();
    }

    /// Partitions whose former owner may have done more than its mark says. Not before they have a queue: what came by
    /// another way must lie before all that comes by that one.
    pub(in crate::group) fn unknown(&self) -> Option<TopicPartitionList> {
        let state = self.lock();
        let mut list = TopicPartitionList::new();
        for (key, _) in state.lanes.iter().filter(|(_, lane)| lane.done.is_none() && lane.queue.is_some()) {
            list.add_partition(&self.topics[key.0], key.1);
        }
        (list.count() > 0).then_some(list)
    }

    /// Takes in what was committed for these partitions, and what was said beside it. With `proves`, hands out nothing of them
    /// before a commit of the same has come through: a member that was assigned partitions after an outage may be outside its
    /// group again, and its backlog would be sent in vain. Both in one step, because such a commit repeats what was said.
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

    /// These are about to be taken away: hands out no more of them.
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

    /// How often partitions were taken away so far. Whoever holds records for long gives back those of partitions that are
    /// leaving, or else they are waited for in vain.
    pub(crate) fn departures(&self) -> u64 {
        self.lock().departures
    }

    /// Waits until nobody works on them any more and, if `committed`, the broker knows it; at most so long. Whether that is
    /// so.
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

    /// These are no longer ours: whatever was handed out from them is stale.
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
