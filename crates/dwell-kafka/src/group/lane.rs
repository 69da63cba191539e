//! One partition of a member: what was taken from it, and what may be committed.

use super::{details, watcher::Watcher};
use crate::record::{Read, Record};
use dwell_core::{LowWater, Timestamp};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::base_consumer::PartitionQueue,
    error::{KafkaError, RDKafkaErrorCode as Code},
    statistics,
};
use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    sync::Condvar,
    time::Duration,
};

/// The position of a lease contains its topic in the two highest bits, its partition in the next
/// fourteen, and its offset in the rest.
const TOPIC_SHIFT: u32 = 62;
const OFFSET_BITS: u32 = 48;

/// How long a message may hold back a partition with a full span before that is logged.
pub(super) const STUCK: Duration = Duration::from_secs(30);

/// Index of the topic in the member's list, and partition.
pub(super) type Key = (usize, i32);

/// One partition, while it is assigned to the member.
pub(super) struct Lane {
    /// Fence of all records that are handed out from it.
    pub(super) epoch: u64,
    /// Fences from before the log went back, with the offset below which each is still valid.
    former: Vec<(u64, u64)>,
    /// Offset, time and size of the last record.
    last: Option<(u64, Option<Timestamp>, usize)>,
    pub(super) queue: Option<PartitionQueue<Watcher>>,
    /// Records that arrived before the partition had its own queue, and records that were not
    /// ready.
    pub(super) waiting: VecDeque<Record>,
    /// Mark of the former owner, and the offsets settled above it. Unknown until the broker was
    /// queried.
    pub(super) done: Option<(u64, BTreeSet<u64>)>,
    /// Received and settled offsets, from the first record on.
    pub(super) tracker: Option<LowWater>,
    /// Number of records that are being handled.
    pub(super) busy: usize,
    /// Number of records that were completed.
    pub(super) completed: u64,
    /// What was committed last, as far as known: the mark, and the number of completed records
    /// then.
    pub(super) committed: Option<(u64, u64)>,
    /// Mark that must be committed again before anything is handed out: see
    /// [`super::lanes::Lanes::learn`].
    pub(super) unproven: Option<u64>,
    /// Whether it is being revoked and hands out no more records.
    pub(super) leaving: bool,
    /// State of its full span, as it was last observed.
    pub(super) full: Option<Full>,
    /// Offset from which it cannot be read, and why.
    pub(super) unreadable: Option<(u64, KafkaError)>,
}

/// A full span. That is normal where many records are handed out at a time, as in a relay. Only if
/// the mark does not move for long, a message is stuck.
pub(super) struct Full {
    mark: u64,
    since: Duration,
    /// Whether the stuck message was logged.
    pub(super) said: bool,
}

impl Lane {
    /// Creates a lane of which nothing is known yet. `epoch` is the fence of all records that are
    /// handed out from it.
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            former: vec![],
            last: None,
            queue: None,
            waiting: VecDeque::new(),
            done: None,
            tracker: None,
            busy: 0,
            completed: 0,
            committed: None,
            unproven: None,
            leaving: false,
            full: None,
            unreadable: None,
        }
    }

    /// Returns whether everything that is settled was committed, as far as known.
    pub(super) fn is_told(&self) -> bool {
        let told = |tracker: &LowWater| self.committed == Some((tracker.commit(), self.completed));
        self.tracker.as_ref().is_none_or(told)
    }

    /// Returns what to commit: a mark, and the offsets settled above it.
    pub(super) fn low_water(&self) -> Option<Cow<'_, LowWater>> {
        let unproven = || self.unproven.map(|mark| Cow::Owned(LowWater::starting_at(mark)));
        self.tracker.as_ref().map(Cow::Borrowed).or_else(unproven)
    }

    /// Returns whether this fence is valid for a record at this offset.
    pub(super) fn holds(&self, fence: u64, offset: u64) -> bool {
        let holds = |(former, below): &(u64, u64)| *former == fence && offset < *below;
        self.epoch == fence || self.former.iter().any(holds)
    }

    /// Handles a log that goes back because it was truncated or recreated. All records from this
    /// offset on are read again and may differ, so their leases and settlements are stale. Records
    /// below it are not affected.
    pub(super) fn go_back(&mut self, epoch: u64, offset: u64, topic: &str) {
        tracing::warn!(
            topic,
            offset,
            "partition went back to an earlier offset; handling the records from there on again"
        );
        let tracker = self.tracker.get_or_insert_with(|| LowWater::starting_at(offset));
        self.busy = self.busy.saturating_sub(tracker.back_to(offset));
        let (former, mark) = (std::mem::replace(&mut self.epoch, epoch), tracker.commit());
        self.former.push((former, offset));
        self.former.iter_mut().for_each(|(_, below)| *below = offset.min(*below));
        self.former.retain(|(_, below)| *below > mark);
        if let Some((mark, done)) = &mut self.done {
            *mark = offset.min(*mark);
            done.retain(|done| *done < offset);
        }
        self.committed = None;
    }

    /// Returns whether this is the last record again. librdkafka returns a record twice that was
    /// taken at the very moment when it halts all partitions, as it does in every rebalance.
    pub(super) fn repeats(&mut self, record: &Record) -> bool {
        let this = Some((record.offset, record.timestamp, record.size()));
        std::mem::replace(&mut self.last, this) == this
    }

    /// Returns whether the former owner has settled this offset.
    pub(super) fn skips(&mut self, offset: u64) -> bool {
        let Some((mark, done)) = &mut self.done else { return false };
        if offset < *mark {
            // The group was reset or the topic was recreated: earlier settlements no longer apply.
            done.clear();
        }
        let skips = done.remove(&offset);
        if skips {
            let tracker = self.tracker.get_or_insert_with(|| LowWater::starting_at(offset));
            tracker.received(offset);
            tracker.complete(offset);
        }
        skips
    }

    /// Returns offsets that the former owner has settled and that were not reached yet. Each commit
    /// repeats them, because it replaces the metadata of the one before.
    pub(super) fn inherited(&self) -> impl Iterator<Item = u64> {
        self.done.iter().flat_map(|(_, done)| done.iter().copied())
    }

    /// Returns the number of unsettled records: those above the mark. If nothing was received yet,
    /// the committed offset counts as the mark; without one, all records count.
    pub(super) fn lag(&self, said: &statistics::Partition) -> u64 {
        let number = |offset: i64| u64::try_from(offset).ok();
        let known = self.tracker.as_ref().map(LowWater::commit).or(number(said.committed_offset));
        let mut mark = known.or(number(said.lo_offset)).unwrap_or(0);
        let is_read = said.fetchq_cnt == 0 && self.waiting.is_empty();
        if is_read && self.tracker.as_ref().is_none_or(|tracker| tracker.span() == 0) {
            // The remaining offsets are transaction markers, not records.
            mark = mark.max(number(said.next_offset).unwrap_or(0));
        }
        number(said.ls_offset).unwrap_or(0).saturating_sub(mark)
    }

    /// Notes that one record is no longer being handled.
    pub(super) fn let_go(&mut self, settled: &Condvar) {
        self.busy = self.busy.saturating_sub(1);
        if self.busy == 0 {
            settled.notify_all();
        }
    }

    pub(super) fn next(&mut self, topic: &str, partition: i32, read: Read) -> Option<Record> {
        if let Some(record) = self.waiting.pop_front() {
            return Some(record);
        }
        loop {
            match self.queue.as_ref()?.poll(Duration::ZERO)? {
                Ok(message) => {
                    let record = read(&message);
                    self.unreadable = None;
                    if !self.repeats(&record) {
                        return Some(record);
                    }
                }
                Err(KafkaError::PartitionEOF(_)) => {}
                Err(error) if is_of_the_batch(&error) => self.stop_at(error, topic, partition),
                // librdkafka retries by itself.
                Err(error) => tracing::warn!(%error, topic, partition, "fetch failed; retrying"),
            }
        }
    }

    /// Stops at a batch that librdkafka fails to read each time. Nothing is skipped, because
    /// records would be lost.
    fn stop_at(&mut self, error: KafkaError, topic: &str, partition: i32) {
        let received = self.tracker.as_ref().map(LowWater::next);
        let offset = received.or(self.done.as_ref().map(|(mark, _)| *mark)).unwrap_or(0);
        if self.unreadable.is_none() {
            tracing::error!(
                %error,
                topic,
                partition,
                offset,
                "batch cannot be read; partition stopped. To skip the batch, stop all consumers of the group and move its \
                 offset behind the batch: kafka-consumer-groups --reset-offsets --to-offset"
            );
        }
        self.unreadable = Some((offset, error));
    }

    /// Notes that the span is full. Logs each stuck message once.
    pub(super) fn note_full(&mut self, topic: &str, partition: i32, now: Duration) {
        let Some(mark) = self.tracker.as_ref().map(LowWater::commit) else { return };
        let before = self.full.take().filter(|full| full.mark == mark);
        let full = self.full.insert(before.unwrap_or(Full { mark, since: now, said: false }));
        if !full.said && now.saturating_sub(full.since) >= STUCK {
            full.said = true;
            tracing::warn!(
                topic,
                partition,
                offset = mark,
                "unsettled message holds back the commit of later ones; fetching no more until it is settled"
            );
        }
    }
}

/// Returns whether the error lies in the stored data, so that a retry cannot succeed.
fn is_of_the_batch(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(
        code,
        Some(Code::BadCompression | Code::BadMessage | Code::NotImplemented | Code::InvalidMessage)
    )
}

/// Adds the mark of a partition and the offsets settled above it.
pub(super) fn add(
    list: &mut TopicPartitionList,
    topic: &str,
    partition: i32,
    (tracker, inherited): (&LowWater, impl Iterator<Item = u64>),
    terse: bool,
) -> bool {
    let mark = tracker.commit();
    let offset = Offset::Offset(i64::try_from(mark).unwrap_or(i64::MAX));
    if list.add_partition_offset(topic, partition, offset).is_err() {
        return false;
    }
    let text = if terse { String::new() } else { details::write(mark, tracker.settled().chain(inherited)) };
    if let Some(mut element) = list.find_partition(topic, partition).filter(|_| !text.is_empty()) {
        element.set_metadata(text);
    }
    true
}

pub(super) fn position((topic, partition): Key, offset: u64) -> u64 {
    (topic as u64) << TOPIC_SHIFT | (partition as u64) << OFFSET_BITS | offset
}

pub(super) fn split(position: u64) -> (Key, u64) {
    let below = |bits: u32| position & ((1 << bits) - 1);
    let (topic, partition) = (position >> TOPIC_SHIFT, below(TOPIC_SHIFT) >> OFFSET_BITS);
    ((topic as usize, partition as i32), below(OFFSET_BITS))
}
