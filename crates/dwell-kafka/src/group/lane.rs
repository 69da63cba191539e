//! One partition that a member has: what was taken from it, and what may be committed.

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

/// A lease's position is its topic in the two highest bits, its partition in the next fourteen, and its offset below.
const TOPIC_SHIFT: u32 = 62;
const OFFSET_BITS: u32 = 48;

/// How long a message holds back a partition whose span is full before that is said.
pub(super) const STUCK: Duration = Duration::from_secs(30);

/// Topic, by its place in the member's list, and partition.
pub(super) type Key = (usize, i32);

/// One partition, for as long as it is ours.
pub(super) struct Lane {
    /// The fence of all that is handed out from it.
    pub(super) epoch: u64,
    /// Fences from before the log went back, and the offset below which each still holds.
    former: Vec<(u64, u64)>,
    /// What came last: its offset, time and size.
    last: Option<(u64, Option<Timestamp>, usize)>,
    pub(super) queue: Option<PartitionQueue<Watcher>>,
    /// What came before the partition had its own queue, and what was looked at and left for later.
    pub(super) waiting: VecDeque<Record>,
    /// The mark of whoever had it before us, and what is done above it; not known before the broker was asked.
    pub(super) done: Option<(u64, BTreeSet<u64>)>,
    /// From the first record on.
    pub(super) tracker: Option<LowWater>,
    /// How many are being worked on.
    pub(super) busy: usize,
    /// How many were done.
    pub(super) completed: u64,
    /// What the broker was last told, as far as we know: the mark, and how many were done then.
    pub(super) committed: Option<(u64, u64)>,
    /// The mark that has to be committed again before anything is handed out: see [`super::lanes::Lanes::prove`].
    pub(super) unproven: Option<u64>,
    /// Being taken away: hands out no more.
    pub(super) leaving: bool,
    /// Where its span was last seen to be full.
    pub(super) full: Option<Full>,
    /// The offset from which on it cannot be read, and why.
    pub(super) unreadable: Option<(u64, KafkaError)>,
}

/// A span that is full. That is ordinary where many are handed out at a time, as in a relay, and only of note if the mark does
/// not move for long: then one message is stuck.
pub(super) struct Full {
    mark: u64,
    since: Duration,
    /// That it is stuck was said.
    pub(super) said: bool,
}

impl Lane {
    /// Of which nothing is known yet. `epoch` is the fence of all that is handed out from it.
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

    /// Whether the broker was told of all that is done, as far as we know.
    pub(super) fn is_told(&self) -> bool {
        let told = |tracker: &LowWater| self.committed == Some((tracker.commit(), self.completed));
        self.tracker.as_ref().is_none_or(told)
    }

    /// What there is to commit: a mark, and what is done above it.
    pub(super) fn low_water(&self) -> Option<Cow<'_, LowWater>> {
        let unproven = || self.unproven.map(|mark| Cow::Owned(LowWater::starting_at(mark)));
        self.tracker.as_ref().map(Cow::Borrowed).or_else(unproven)
    }

    /// Whether this fence is that of what was handed out at this offset.
    pub(super) fn holds(&self, fence: u64, offset: u64) -> bool {
        let holds = |(former, below): &(u64, u64)| *former == fence && offset < *below;
        self.epoch == fence || self.former.iter().any(holds)
    }

    /// The log goes back: it was cut off, or made anew. All from here on comes again, and may be something else, so that
    /// whatever was handed out or done from here on is stale. What lies below is as it was.
    pub(super) fn go_back(&mut self, epoch: u64, offset: u64, topic: &str) {
        tracing::warn!(
            topic,
            offset,
            "a partition of Kafka goes back to an earlier offset: what follows is handled again"
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

    /// Whether it is what came last. The library brings a record once more that was taken at the very moment when it halts
    /// all partitions, as it does whenever the members of the group change.
    pub(super) fn repeats(&mut self, record: &Record) -> bool {
        let this = Some((record.offset, record.timestamp, record.size()));
        std::mem::replace(&mut self.last, this) == this
    }

    /// Whether it was done by whoever had the partition before us.
    pub(super) fn skips(&mut self, offset: u64) -> bool {
        let Some((mark, done)) = &mut self.done else { return false };
        if offset < *mark {
            // Somebody has set the group back, or the topic was made anew: what was done then is no longer of interest.
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

    /// What whoever had the partition before us has done, and we did not come to yet. It is said again with each commit,
    /// which replaces what was said before.
    pub(super) fn inherited(&self) -> impl Iterator<Item = u64> {
        self.done.iter().flat_map(|(_, done)| done.iter().copied())
    }

    /// How many lie in it that are not done: what is above the mark. Where nothing was received yet, what was committed before
    /// us counts, and where nothing was, all that is there.
    pub(super) fn lag(&self, said: &statistics::Partition) -> u64 {
        let number = |offset: i64| u64::try_from(offset).ok();
        let known = self.tracker.as_ref().map(LowWater::commit).or(number(said.committed_offset));
        let mut mark = known.or(number(said.lo_offset)).unwrap_or(0);
        let is_read = said.fetchq_cnt == 0 && self.waiting.is_empty();
        if is_read && self.tracker.as_ref().is_none_or(|tracker| tracker.span() == 0) {
            // What is left are ends of transactions, which are no records.
            mark = mark.max(number(said.next_offset).unwrap_or(0));
        }
        number(said.ls_offset).unwrap_or(0).saturating_sub(mark)
    }

    /// One less is being worked on.
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
                // The library goes on by itself.
                Err(error) => tracing::warn!(%error, topic, partition, "fetch failed; retrying"),
            }
        }
    }

    /// The library reads the batch again and again. Nothing is skipped: its records would be lost.
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

    /// Its span is full. Says so once of each message that is stuck.
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
                "one unsettled message holds back the commit of all behind it: no more are fetched until it is settled"
            );
        }
    }
}

/// Whether the fault lies in what is stored, so that no other attempt can succeed.
fn is_of_the_batch(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(
        code,
        Some(Code::BadCompression | Code::BadMessage | Code::NotImplemented | Code::InvalidMessage)
    )
}

/// Adds the mark of a partition, and what is done above it.
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
