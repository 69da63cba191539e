//! The partitions of a member: what was taken from each, and what may be committed.

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

/// Duration of a commit after which the broker counts as unavailable. Records that are handled from
/// then on may be handled again by another member, so no more are handed out. This bounds the
/// duplicates when a broker dies.
const COMMIT_PATIENCE: Duration = Duration::from_millis(100);

/// Interval at which a waiting caller checks the queues: librdkafka does not notify of every queue
/// that is no longer empty. The interval is shorter while records flow.
const SWEEP: Duration = Duration::from_millis(100);
const SWEEP_IN_FLOW: Duration = Duration::from_millis(2);
/// Records count as flowing until none was taken for this long.
const FLOW: Duration = Duration::from_millis(300);

/// The partitions of one member.
pub(crate) struct Lanes {
    topics: Vec<String>,
    max_span: usize,
    read: Read,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Notified when something was settled or committed.
    settled: Condvar,
    /// Notified when there is something to commit.
    completed: Condvar,
    /// Notified when there may be something to take, or when the lanes are closed.
    pub(crate) stirred: Notify,
    /// Number of uncommitted records in the partitions, as of the last statistics.
    pub(super) lag: AtomicU64,
}

struct State {
    lanes: BTreeMap<Key, Lane>,
    /// Fence of the next assignment.
    epoch: u64,
    /// Index of the lane to take from first, so that a busy one does not starve the others.
    turn: usize,
    closed: bool,
    /// The member wants to leave, so nothing is awaited any more.
    hurried: bool,
    /// When a record was last taken.
    taken: Option<Duration>,
    /// Since when a commit is pending.
    committing: Option<Duration>,
    /// Whether the pending commit was logged as slow.
    said: bool,
    /// No broker is available.
    deserted: bool,
    /// The committing thread waits to be notified.
    sleeps: bool,
    /// How often partitions were revoked.
    departures: u64,
    /// An error from the broker, returned to the caller once.
    refused: Option<Error>,
    /// The broker accepts commits only without metadata.
    terse: bool,
    vitals: Vitals,
    /// What prevents the member from working, as text.
    trouble: Option<String>,
}

/// A record that was taken, with its lease.
pub(crate) struct Taken {
    /// Index of its topic in the member's list.
    pub(crate) topic: usize,
    pub(crate) lease: LeaseId,
    pub(crate) record: Record,
}

impl Lanes {
    /// Creates the lanes of a member without partitions. `epoch` begins at a random number, so that
    /// fences of different members differ.
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

    /// Takes up to `max` records that are `ready`. A record that is not ready is checked again next
    /// time, and holds back the records after it in its partition. Nothing is awaited, so a
    /// cancelled caller loses no record.
    pub(crate) fn take(&self, max: usize, ready: &mut dyn FnMut(&Record) -> bool) -> Result<Vec<Taken>> {
        let mut state = self.lock();
        if let Some(error) = state.refused.take() {
            return Err(error);
        }
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "this Kafka consumer was closed: open another one"));
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

    /// Returns whether the span above the mark is full, so that the next record is not handed out.
    /// The span is counted in offsets, because the metadata describes offsets and transactions
    /// leave gaps.
    fn is_full(&self, lane: &Lane) -> bool {
        self.is_full_for(lane, lane.waiting.front())
    }

    /// Returns the same for a given next record.
    fn is_full_for(&self, lane: &Lane, record: Option<&Record>) -> bool {
        let Some(tracker) = &lane.tracker else { return false };
        let next = record.map_or(tracker.next(), |record| record.offset);
        tracker.span() > 0 && next.saturating_sub(tracker.commit()) >= self.max_span as u64
    }

    /// Returns whether a commit does not succeed, or would not. Records that are handled meanwhile
    /// may be handled again by another member.
    pub(crate) fn is_stuck(&self) -> bool {
        self.lock().is_stuck(self.clock.elapsed())
    }

    /// Sets whether no broker is available. Nothing is handed out while that is so: records that
    /// are handled then can be committed only later, when their partitions may belong to another
    /// member.
    pub(super) fn desert(&self, deserted: bool) {
        let before = std::mem::replace(&mut self.lock().deserted, deserted);
        if before && !deserted {
            self.stirred.notify_one();
        }
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.lock().deserted
    }

    /// Reads a record in the one way of this member. Records of all sources must be read alike,
    /// because [`Lane::repeats`] compares their sizes.
    pub(super) fn read(&self, message: &BorrowedMessage<'_>) -> Record {
        (self.read)(message)
    }

    pub(super) fn a_topic(&self) -> Option<&str> {
        self.topics.first().map(String::as_str)
    }

    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Returns when to check the queues again without a notification.
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
                // The record follows a gap.
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

    /// Computes the lag from librdkafka's statistics, which do not contain offsets committed in
    /// transactions.
    pub(super) fn measure(&self, said: &Statistics) {
        let mut state = self.lock();
        let State { lanes, vitals, .. } = &mut *state;
        let of = |(topic, partition): Key| said.topics.get(&self.topics[topic])?.partitions.get(&partition);
        let lag = lanes.iter().filter_map(|(key, lane)| Some(lane.lag(of(*key)?)));
        self.lag.store(lag.sum(), Ordering::Relaxed);
        // Partitions that have not begun or cannot be read are omitted: they are known to wait.
        let is_read =
            |lane: &Lane| lane.done.is_some() && lane.waiting.is_empty() && lane.unreadable.is_none();
        let read = lanes.iter().filter(|(_, lane)| is_read(lane));
        vitals.observe(self.clock.elapsed(), said, read.filter_map(|(key, _)| Some((*key, of(*key)?))));
    }

    /// Returns what is wrong with the client, and stores it for [`Self::trouble`].
    pub(super) fn complaint(&self, limits: Limits) -> Option<Complaint> {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        let complaint = state.vitals.complaint(now, state.committing, limits);
        let of = |(topic, partition): Key| format!("partition {partition} of `{}`", self.topics[topic]);
        let unreadable = state.lanes.iter().find_map(|(key, lane)| {
            let (offset, error) = lane.unreadable.as_ref()?;
            Some(format!("{} cannot be read from offset {offset} on: {error}", of(*key)))
        });
        state.trouble = unreadable.or_else(|| {
            complaint.as_ref().map(|complaint| match complaint {
                Complaint::Outside(text) => text.clone(),
                Complaint::Stalled(partitions) => {
                    let each = partitions
                        .iter()
                        .map(|(key, offset)| format!("{} from offset {offset} on", of(*key)));
                    format!("no records arrive: {}", each.collect::<Vec<_>>().join(", "))
                }
            })
        });
        complaint
    }

    /// Returns what prevents the member from working, if anything does.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// Returns whether the client is in its group, as of the last statistics.
    pub(super) fn is_inside(&self) -> bool {
        self.lock().vitals.is_inside()
    }

    /// Returns the name of a topic.
    pub(super) fn topic(&self, key: Key) -> &str {
        &self.topics[key.0]
    }

    /// Makes the next [`Self::take`] return this error.
    pub(super) fn refuse(&self, error: Error) {
        self.lock().refused = Some(error);
        self.stirred.notify_one();
    }

    /// Ends all waits for records that are being handled.
    pub(super) fn hurry(&self) {
        self.lock().hurried = true;
        self.settled.notify_all();
        self.completed.notify_all();
    }

    /// Closes the lanes. All leases become stale.
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
