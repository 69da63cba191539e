//! Records of finished messages, up to the configured numbers.

use super::{
    hashed::{HashedId, IdHasher, IdMap},
    records::history,
    tally::Tally,
};
use dwell_core::{Count, Headers, MessageId, Record, State, Timestamp, is_job_topic, wire};
use std::collections::VecDeque;

/// Maximum number of evicted records that are dropped later, without the lock.
const MOST_GONE: usize = 4096;

/// Records of done, discarded and cancelled messages. Jobs are kept separately, because clients ask
/// for finished jobs.
pub(super) struct Finished {
    others: Kept,
    jobs: Kept,
    tally: Tally,
    /// Evicted records that are not dropped yet, because dropping takes time.
    gone: Vec<Entry>,
}

/// Whether the record belongs to a job. A job that was pending for a forwarder counts, unless it
/// was forwarded and is now in another broker.
fn is_job(topic: &str, headers: &Headers, state: State) -> bool {
    is_job_topic(topic) || state != State::Done && wire::is_job(topic, headers)
}

/// A record without its history.
pub(super) struct Entry {
    serial: u64,
    id: HashedId,
    /// Number of the previous record of the same message.
    older: Option<u64>,
    record: Record,
    /// Start of the last run, if known.
    started: Option<Timestamp>,
}

impl Entry {
    pub(super) fn new(serial: u64, id: HashedId, record: Record, started: Option<Timestamp>) -> Self {
        Self { serial, id, older: None, record, started }
    }
}

impl Finished {
    pub(super) fn new(others: usize, jobs: usize) -> Self {
        Self { others: Kept::new(others), jobs: Kept::new(jobs), tally: Tally::default(), gone: Vec::new() }
    }

    /// Whether such a record would be kept. Otherwise it need not be created.
    pub(super) fn keeps(&self, topic: &str, headers: &Headers, state: State) -> bool {
        let kept = if is_job(topic, headers, state) { &self.jobs } else { &self.others };
        kept.capacity > 0
    }

    /// Adds a record. Returns the evicted record of a job if it was the last one of its id. The id
    /// must then be removed, too, so that a repeated send is not a duplicate of a job that does not
    /// exist.
    pub(super) fn push(&mut self, entry: Entry) -> Option<&Record> {
        let record = &entry.record;
        let is_job = is_job(&record.topic, &record.message.headers, record.state);
        let kept = if is_job { &mut self.jobs } else { &mut self.others };
        let oldest = kept.make_room();
        let place = |record: &Record| (record.topic.clone(), record.subscription.clone(), record.state);
        // Usually, the new and the evicted record have the same topic, subscription and state.
        let is_same = oldest.as_ref().is_some_and(|(oldest, _)| {
            let (new, old) = (record, &oldest.record);
            new.state == old.state && new.topic == old.topic && new.subscription == old.subscription
        });
        if !is_same {
            let (topic, subscription, state) = place(record);
            self.tally.add(topic, subscription, state);
            if let Some((oldest, _)) = &oldest {
                let (topic, subscription, state) = place(&oldest.record);
                self.tally.remove(topic, subscription, state);
            }
        }
        kept.push(entry);
        if self.gone.len() >= MOST_GONE {
            self.gone.clear();
        }
        let (oldest, is_last) = oldest?;
        self.gone.push(oldest);
        self.gone.last().filter(|_| is_job && is_last).map(|gone| &gone.record)
    }

    /// Takes the records that were evicted since the last call, to be dropped without the lock.
    pub(super) fn take_gone(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.gone)
    }

    /// Iterates over all records, without their history.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        let entries = self.others.entries.iter().chain(&self.jobs.entries);
        entries.map(|entry| (entry.serial, &entry.record))
    }

    /// Returns the records of one message with their history, newest first.
    pub(super) fn of(&self, id: &MessageId, hasher: &IdHasher) -> Vec<(u64, Record)> {
        let id = hasher.of_message(id);
        let entries = self.others.of(&id).chain(self.jobs.of(&id));
        entries
            .map(|entry| {
                let mut record = entry.record.clone();
                record.history = history(&record, entry.started);
                (entry.serial, record)
            })
            .collect()
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> {
        self.tally.counts()
    }
}

/// A bounded list of records, oldest first.
struct Kept {
    capacity: usize,
    entries: VecDeque<Entry>,
    /// Number of evicted records, which is the number of the first one.
    gone: u64,
    /// Number of the newest record of each message.
    youngest: IdMap<u64>,
}

impl Kept {
    fn new(capacity: usize) -> Self {
        Self { capacity, entries: VecDeque::new(), gone: 0, youngest: IdMap::default() }
    }

    /// Evicts the oldest record if the list is full. Also returns whether it was the last one of
    /// its message.
    fn make_room(&mut self) -> Option<(Entry, bool)> {
        if self.entries.len() < self.capacity {
            return None;
        }
        let oldest = self.entries.pop_front()?;
        let is_last = self.youngest.remove_if(oldest.id.clone(), |number| *number == self.gone).is_some();
        self.gone += 1;
        Some((oldest, is_last))
    }

    fn push(&mut self, mut entry: Entry) {
        let number = self.gone + self.entries.len() as u64;
        entry.older = self.youngest.insert(entry.id.clone(), number);
        self.entries.push_back(entry);
    }

    fn of(&self, id: &HashedId) -> impl Iterator<Item = &Entry> {
        let entry = |number: u64| self.entries.get(number.checked_sub(self.gone)? as usize);
        let youngest = self.youngest.get(id).and_then(|number| entry(*number));
        std::iter::successors(youngest, move |younger| younger.older.and_then(entry))
    }
}
