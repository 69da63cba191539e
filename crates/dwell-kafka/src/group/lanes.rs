//! The partitions that a member has: what was taken from each, and what may be committed.

use super::{
    details::{self, REACH},
    lane::{Key, Lane, add, position, split},
    member::Watcher,
};
use crate::record::Record;
use dwell_core::{Clock, Error, ErrorKind, LeaseId, LowWater, Result};
use rdkafka::{TopicPartitionList, consumer::base_consumer::PartitionQueue, statistics::Statistics};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// A commit that takes longer than this means that the broker is away. What is handled from then on may have to be handled
/// again by another member, so nothing more is handed out. It bounds what comes twice when a broker dies.
const COMMIT_PATIENCE: Duration = Duration::from_millis(100);

/// How long what is settled waits for its commit, so that one commit is for many.
const GATHER: Duration = Duration::from_millis(5);
/// Whoever commits looks by himself this often, whatever he is told.
const IDLE: Duration = Duration::from_secs(1);

/// The library does not tell of every queue that is no longer empty. So whoever waits looks again by himself: often while
/// records flow, and else now and then.
const SWEEP: Duration = Duration::from_millis(100);
const SWEEP_IN_FLOW: Duration = Duration::from_millis(2);
/// Records flow until none was taken for this long.
const FLOW: Duration = Duration::from_millis(300);

/// The partitions of one member.
pub(crate) struct Lanes {
    topics: Vec<String>,
    max_span: usize,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Told when something was settled or committed, for who waits for the rest.
    settled: Condvar,
    /// Told when there is something to commit, for who does.
    completed: Condvar,
    /// Told when there may be something to take, or no more ever.
    pub(crate) stirred: Notify,
    /// What lies in the partitions and is not committed, as the library last said.
    pub(super) lag: AtomicU64,
}

struct State {
    lanes: BTreeMap<Key, Lane>,
    /// The fence of the next assignment.
    epoch: u64,
    /// The lane to look at first, so that a busy one does not starve the others.
    turn: usize,
    closed: bool,
    /// Somebody wants to leave: nothing is waited for any more.
    hurried: bool,
    /// When a record was last taken.
    taken: Option<Duration>,
    /// Since when something is to be committed, and is not yet.
    committing: Option<Duration>,
    /// Whoever commits waits to be told that there is something.
    sleeps: bool,
    /// How often partitions were taken away.
    departures: u64,
    /// What the broker refuses us, to be told once.
    refused: Option<Error>,
    /// The broker takes commits with nothing beside the mark.
    terse: bool,
}

/// A record in our hands.
pub(crate) struct Taken {
    /// Which topic of the member's it came from.
    pub(crate) topic: usize,
    pub(crate) lease: LeaseId,
    pub(crate) record: Record,
}

impl Lanes {
    /// None yet. `epoch` begins at a random number, so that no fence of another member is ever one of ours.
    pub(crate) fn new(topics: Vec<String>, max_span: usize, epoch: u64, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            lanes: BTreeMap::new(),
            epoch,
            turn: 0,
            closed: false,
            hurried: false,
            taken: None,
            committing: None,
            sleeps: false,
            departures: 0,
            refused: None,
            terse: false,
        };
        let (settled, completed, stirred) = (Condvar::new(), Condvar::new(), Notify::new());
        let (state, lag) = (Mutex::new(state), AtomicU64::new(0));
        Self { topics, max_span, clock, state, settled, completed, stirred, lag }
    }

    /// Up to `max` records that are `ready`. One that is not is looked at again next time, and holds back those behind it
    /// in its partition. Nothing is awaited, so nothing that was taken can be lost.
    pub(crate) fn take(&self, max: usize, ready: &mut dyn FnMut(&Record) -> bool) -> Result<Vec<Taken>> {
        let mut state = self.lock();
        if let Some(error) = state.refused.take() {
            return Err(error);
        }
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "this consumer of Kafka was closed: open another one"));
        }
        let now = self.clock.elapsed();
        if state.is_stuck(now) {
            return Ok(vec![]);
        }
        let mut batch = vec![];
        let count = state.lanes.len().max(1);
        state.turn = (state.turn + 1) % count;
        let middle = state.turn.min(state.lanes.len());
        let State { lanes, epoch, .. } = &mut *state;
        let mut lanes: Vec<_> = lanes.iter_mut().collect();
        lanes.rotate_left(middle);
        for (key, lane) in lanes {
            self.take_from(*key, lane, epoch, max, ready, &mut batch);
        }
        if !batch.is_empty() {
            state.taken = Some(now);
        }
        Ok(batch)
    }

    /// Whether so much lies above the mark that the next one is not handed out. Counted in offsets, which are what can be told
    /// beside the mark: transactions leave gaps.
    fn is_full(&self, lane: &Lane) -> bool {
        let Some(tracker) = &lane.tracker else { return false };
        let next = lane.waiting.front().map_or(tracker.next(), |record| record.offset);
        tracker.span() > 0 && next.saturating_sub(tracker.commit()) >= self.max_span as u64
    }

    /// Whether a commit does not come through. What is done meanwhile may have to be done again by somebody else.
    pub(crate) fn is_stuck(&self) -> bool {
        self.lock().is_stuck(self.clock.elapsed())
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// When to look again, whatever is heard.
    pub(super) fn sweep(&self) -> Duration {
        let (taken, now) = (self.lock().taken, self.clock.elapsed());
        if taken.is_some_and(|taken| now.saturating_sub(taken) < FLOW) { SWEEP_IN_FLOW } else { SWEEP }
    }

    fn take_from(
        &self,
        key: Key,
        lane: &mut Lane,
        epoch: &mut u64,
        max: usize,
        ready: &mut dyn FnMut(&Record) -> bool,
        batch: &mut Vec<Taken>,
    ) {
        while batch.len() < max && !lane.leaving && lane.done.is_some() {
            if self.is_full(lane) {
                lane.warn_full(&self.topics[key.0], key.1);
                return;
            }
            let Some(record) = lane.next(&self.topics[key.0]) else { return };
            lane.waiting.push_front(record);
            if self.is_full(lane) {
                // Behind a gap.
                continue;
            }
            let Some(record) = lane.waiting.pop_front() else { return };
            if lane.tracker.as_ref().is_some_and(|tracker| record.offset < tracker.next()) {
                *epoch += 1;
                lane.go_back(*epoch, record.offset, &self.topics[key.0]);
                self.settled.notify_all();
            }
            if lane.skips(record.offset) {
                continue;
            }
            if !ready(&record) {
                lane.waiting.push_front(record);
                return;
            }
            let offset = record.offset;
            lane.tracker.get_or_insert_with(|| LowWater::starting_at(offset)).received(offset);
            lane.busy += 1;
            let lease = LeaseId { position: position(key, offset), fence: lane.epoch };
            batch.push(Taken { topic: key.0, lease, record });
        }
    }

    /// Counts for the commit from now on. `false` if it is not ours any more.
    pub(crate) fn complete(&self, lease: LeaseId) -> bool {
        let mut state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get_mut(&key).filter(|lane| lane.holds(lease.fence, offset));
        let Some(lane) = lane else { return false };
        let was_full = self.is_full(lane);
        let completed = lane.tracker.as_mut().is_some_and(|tracker| tracker.complete(offset));
        if completed {
            lane.completed += 1;
            lane.let_go(&self.settled);
        }
        if was_full {
            self.stirred.notify_one();
        }
        if completed && std::mem::take(&mut state.sleeps) {
            self.completed.notify_one();
        }
        completed
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

    /// Partitions whose former owner may have done more than its mark says. Not before they have a queue: what came by
    /// another way must lie before all that comes by that one.
    pub(super) fn unknown(&self) -> Option<TopicPartitionList> {
        let state = self.lock();
        let mut list = TopicPartitionList::new();
        for (key, _) in state.lanes.iter().filter(|(_, lane)| lane.done.is_none() && lane.queue.is_some()) {
            list.add_partition(&self.topics[key.0], key.1);
        }
        (list.count() > 0).then_some(list)
    }

    /// What was committed for them, and what was said beside it.
    pub(super) fn learn(&self, committed: &TopicPartitionList) {
        let mut state = self.lock();
        for element in &committed.elements() {
            let topic = self.topics.iter().position(|known| known == element.topic());
            let lane = topic.and_then(|topic| state.lanes.get_mut(&(topic, element.partition())));
            let mark = element.offset().to_raw().and_then(|offset| u64::try_from(offset).ok());
            if let Some(lane) = lane {
                let done = mark.map(|mark| (mark, details::read(mark, element.metadata())));
                lane.done = Some(done.unwrap_or_default());
            }
        }
        self.stirred.notify_one();
    }

    /// The broker has no room for what is said beside the mark: only the mark from now on.
    pub(super) fn be_terse(&self) {
        self.lock().terse = true;
    }

    /// Whether it is still ours to settle.
    pub(crate) fn is_open(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.and_then(|lane| lane.tracker.as_ref()).is_some_and(|tracker| tracker.is_open(offset))
    }

    /// How often partitions were taken away so far. Whoever holds records for long gives back those of partitions that are
    /// leaving, or else they are waited for in vain.
    pub(crate) fn departures(&self) -> u64 {
        self.lock().departures
    }

    /// Whether its partition is about to go to another member, or has gone.
    pub(crate) fn is_leaving(&self, lease: LeaseId) -> bool {
        let state = self.lock();
        let (key, offset) = split(lease.position);
        let lane = state.lanes.get(&key).filter(|lane| lane.holds(lease.fence, offset));
        lane.is_none_or(|lane| lane.leaving)
    }

    /// Until a commit is worth while: a moment after something was completed. Not at all if somebody wants to leave.
    pub(super) fn gather(&self) {
        let is_idle = |state: &mut State| {
            // One that failed is over only when there is nothing left of it, whosever the partition is by now.
            let is_told = state.committing.is_none() && state.lanes.values().all(Lane::is_told);
            state.sleeps = !state.hurried && is_told;
            state.sleeps
        };
        drop(self.completed.wait_timeout_while(self.lock(), IDLE, is_idle));
        self.pause(GATHER);
    }

    /// A moment, unless somebody wants to leave.
    pub(super) fn pause(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |state| !state.hurried));
    }

    /// A moment, whatever happens.
    pub(super) fn wait(&self, length: Duration) {
        drop(self.completed.wait_timeout_while(self.lock(), length, |_| true));
    }

    /// These partitions are ours from now on.
    pub(super) fn assigned(&self, partitions: &TopicPartitionList) {
        let mut state = self.lock();
        for key in self.keys(partitions) {
            state.epoch += 1;
            let epoch = state.epoch;
            state.lanes.insert(key, Lane::new(epoch));
        }
    }

    /// Gives a queue to each partition that has none. Whether any got one.
    pub(super) fn open(&self, mut split: impl FnMut(&str, i32) -> Option<PartitionQueue<Watcher>>) -> bool {
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
    pub(super) fn came_early(&self, topic: &str, record: Record) {
        let Some(index) = self.topics.iter().position(|known| known == topic) else { return };
        if let Some(lane) = self.lock().lanes.get_mut(&(index, record.partition))
            && !lane.repeats(&record)
        {
            lane.waiting.push_back(record);
        }
        self.stirred.notify_one();
    }

    /// These are about to be taken away: hands out no more of them.
    pub(super) fn leave(&self, partitions: &TopicPartitionList) {
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

    /// Waits until nobody works on them any more and, if `committed`, the broker knows it; at most so long. Whether that is
    /// so.
    pub(super) fn wait_for(
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
    pub(super) fn gone(&self, partitions: &TopicPartitionList) {
        let keys = self.keys(partitions);
        let mut state = self.lock();
        let gone: Vec<_> = keys.iter().filter_map(|key| state.lanes.remove(key)).collect();
        state.departures += 1;
        drop(state);
        drop(gone);
        self.stirred.notify_one();
    }

    /// What is to be committed: the marks that have moved, and those above which something was done. They count as committed
    /// unless [`Self::uncommitted`] says otherwise.
    pub(super) fn marks(&self) -> Option<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        let mut state = self.lock();
        let terse = state.terse;
        for (key, lane) in &mut state.lanes {
            let Some(tracker) = &lane.tracker else { continue };
            let now = (tracker.commit(), lane.completed);
            if lane.committed == Some(now) {
                continue;
            }
            if add(&mut list, &self.topics[key.0], key.1, (tracker, lane.inherited()), terse) {
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

    /// A commit has come through.
    pub(super) fn committed(&self) {
        let mut state = self.lock();
        let was_stuck = state.is_stuck(self.clock.elapsed());
        state.committing = None;
        drop(state);
        self.settled.notify_all();
        if was_stuck {
            self.stirred.notify_one();
        }
    }

    /// A commit of these failed: their marks are to be committed again.
    pub(super) fn uncommitted(&self, partitions: &TopicPartitionList) {
        let keys = self.keys(partitions);
        let mut state = self.lock();
        for key in keys {
            if let Some(lane) = state.lanes.get_mut(&key) {
                lane.committed = None;
            }
        }
    }

    /// What lies in the partitions and is not done, from what the library says of them. It does not know what was committed
    /// within a transaction.
    pub(super) fn measure(&self, said: &Statistics) {
        let state = self.lock();
        let lag = state.lanes.iter().filter_map(|((topic, partition), lane)| {
            let said = said.topics.get(&self.topics[*topic])?.partitions.get(partition)?;
            Some(lane.lag(said))
        });
        self.lag.store(lag.sum(), Ordering::Relaxed);
    }

    /// The next [`Self::take`] tells this.
    pub(super) fn refuse(&self, error: Error) {
        self.lock().refused = Some(error);
        self.stirred.notify_one();
    }

    /// Whoever waits for what is being worked on waits no longer.
    pub(super) fn hurry(&self) {
        self.lock().hurried = true;
        self.settled.notify_all();
        self.completed.notify_all();
    }

    /// From now on everything is closed or stale.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let lanes = std::mem::take(&mut state.lanes);
        drop(state);
        drop(lanes);
        self.stirred.notify_waiters();
        self.stirred.notify_one();
    }

    fn keys(&self, partitions: &TopicPartitionList) -> Vec<Key> {
        let key = |topic: &str, partition: i32| {
            self.topics.iter().position(|known| known == topic).map(|index| (index, partition))
        };
        partitions.elements().iter().filter_map(|element| key(element.topic(), element.partition())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_stuck(&self, now: Duration) -> bool {
        self.committing.is_some_and(|since| now.saturating_sub(since) > COMMIT_PATIENCE)
    }
}

#[cfg(test)]
mod tests;
