//! The partitions that a member has: what was taken from each, and what may be committed.

use super::{
    details::{self, REACH},
    lane::{Key, Lane, add, position, split},
    vitals::{Complaint, Limits, Vitals},
};
use crate::record::{Read, Record};
use dwell_core::{Clock, Error, ErrorKind, LeaseId, LowWater, Result};
use rdkafka::{TopicPartitionList, message::BorrowedMessage, statistics::Statistics};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

mod assignment;
mod commits;
mod settling;

pub(crate) use settling::Settling;

/// A commit that takes longer than this means that the broker is away. What is handled from then on may have to be handled
/// again by another member, so nothing more is handed out. It bounds what comes twice when a broker dies.
const COMMIT_PATIENCE: Duration = Duration::from_millis(100);

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
    read: Read,
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
    /// That it takes so long was said.
    said: bool,
    /// No broker is there.
    deserted: bool,
    /// Whoever commits waits to be told that there is something.
    sleeps: bool,
    /// How often partitions were taken away.
    departures: u64,
    /// What the broker refuses us, to be told once.
    refused: Option<Error>,
    /// The broker takes commits with nothing beside the mark.
    terse: bool,
    vitals: Vitals,
    /// What keeps it from its work, in words.
    trouble: Option<String>,
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
    pub(crate) fn new(
        topics: Vec<String>,
        max_span: usize,
        epoch: u64,
        read: Read,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = State {
            lanes: BTreeMap::new(),
            epoch,
            turn: 0,
            closed: false,
            hurried: false,
            taken: None,
            committing: None,
            said: false,
            deserted: false,
            sleeps: false,
            departures: 0,
            refused: None,
            terse: false,
            vitals: Vitals::default(),
            trouble: None,
        };
        let (settled, completed, stirred) = (Condvar::new(), Condvar::new(), Notify::new());
        let (state, lag) = (Mutex::new(state), AtomicU64::new(0));
        Self { topics, max_span, read, clock, state, settled, completed, stirred, lag }
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
        self.is_full_for(lane, lane.waiting.front())
    }

    /// The same for what comes next, where that is known.
    fn is_full_for(&self, lane: &Lane, record: Option<&Record>) -> bool {
        let Some(tracker) = &lane.tracker else { return false };
        let next = record.map_or(tracker.next(), |record| record.offset);
        tracker.span() > 0 && next.saturating_sub(tracker.commit()) >= self.max_span as u64
    }

    /// Whether a commit does not come through, or would not. What is done meanwhile may have to be done again by somebody
    /// else.
    pub(crate) fn is_stuck(&self) -> bool {
        self.lock().is_stuck(self.clock.elapsed())
    }

    /// Whether no broker is there, as far as anybody knows. Nothing is handed out while that is so: what is done then can
    /// only be told once there is one again, and by that time the partitions may be another's.
    pub(super) fn desert(&self, deserted: bool) {
        let before = std::mem::replace(&mut self.lock().deserted, deserted);
        if before && !deserted {
            self.stirred.notify_one();
        }
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.lock().deserted
    }

    /// In the one way of this member: whatever way a record comes, it must be told from the next one, and that by its size too.
    pub(super) fn read(&self, message: &BorrowedMessage<'_>) -> Record {
        (self.read)(message)
    }

    pub(super) fn a_topic(&self) -> Option<&str> {
        self.topics.first().map(String::as_str)
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
        while batch.len() < max && !lane.leaving && lane.done.is_some() && lane.unproven.is_none() {
            if self.is_full(lane) {
                lane.note_full(&self.topics[key.0], key.1, self.clock.elapsed());
                return;
            }
            let Some(record) = lane.next(&self.topics[key.0], key.1, self.read) else { return };
            if self.is_full_for(lane, Some(&record)) {
                // Behind a gap.
                lane.waiting.push_front(record);
                continue;
            }
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

    /// What lies in the partitions and is not done, from what the library says of them. It does not know what was committed
    /// within a transaction.
    pub(super) fn measure(&self, said: &Statistics) {
        let mut state = self.lock();
        let State { lanes, vitals, .. } = &mut *state;
        let of = |(topic, partition): Key| said.topics.get(&self.topics[topic])?.partitions.get(&partition);
        let lag = lanes.iter().filter_map(|(key, lane)| Some(lane.lag(of(*key)?)));
        self.lag.store(lag.sum(), Ordering::Relaxed);
        // One that has not begun, or cannot be read, is known to wait.
        let is_read =
            |lane: &Lane| lane.done.is_some() && lane.waiting.is_empty() && lane.unreadable.is_none();
        let read = lanes.iter().filter(|(_, lane)| is_read(lane));
        vitals.observe(self.clock.elapsed(), said, read.filter_map(|(key, _)| Some((*key, of(*key)?))));
    }

    /// What is wrong with the client. It is what [`Self::trouble`] tells, too.
    pub(super) fn complaint(&self, limits: Limits) -> Option<Complaint> {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        let complaint = state.vitals.complaint(now, state.committing, limits);
        let of = |(topic, partition): Key| format!("partition {partition} of `{}`", self.topics[topic]);
        let unreadable = state.lanes.iter().find_map(|(key, lane)| {
            let (offset, error) = lane.unreadable.as_ref()?;
            Some(format!("{} cannot be read from offset {offset} on: {error}", of(*key)))
        });
        // A trouble lasts until the client works, or is seen to: a new one has none of its own for a while.
        let before = state.trouble.take().filter(|_| !state.vitals.is_well());
        let complained = complaint.as_ref().map(|complaint| match complaint {
            Complaint::Outside(text) | Complaint::NoCoordinator { text, .. } => text.clone(),
            Complaint::Stalled(partitions) => {
                let each =
                    partitions.iter().map(|(key, offset)| format!("{} from offset {offset} on", of(*key)));
                format!("no records arrive: {}", each.collect::<Vec<_>>().join(", "))
            }
        });
        state.trouble = unreadable.or(complained).or(before);
        complaint
    }

    /// The client before this one was given up, for this reason.
    pub(super) fn inherit(&self, trouble: String) {
        self.lock().trouble = Some(trouble);
    }

    /// What keeps it from its work, if anything does.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// Whether the client is in its group, as the library last said.
    pub(super) fn is_inside(&self) -> bool {
        self.lock().vitals.is_inside()
    }

    /// The name of a topic.
    pub(super) fn topic(&self, key: Key) -> &str {
        &self.topics[key.0]
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
        let is_late = |since| now.saturating_sub(since) > COMMIT_PATIENCE;
        self.deserted || self.committing.is_some_and(is_late)
    }
}

#[cfg(test)]
mod tests;
