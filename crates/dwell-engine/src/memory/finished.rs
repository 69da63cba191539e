//! The records of messages that are gone, as many as the settings keep.

use super::{
    hashed::{HashedId, IdHasher, IdMap},
    records::history,
    tally::Tally,
};
use dwell_core::{Count, Headers, MessageId, Record, State, Timestamp, is_job_topic, wire};
use std::collections::VecDeque;

/// So many that had to go are dropped later, outside of the lock.
const MOST_GONE: usize = 4096;

/// Done, discarded and cancelled messages. Jobs are kept apart, because people ask for them when they are over.
pub(super) struct Finished {
    others: Kept,
    jobs: Kept,
    tally: Tally,
    /// Had to go, and are not dropped yet: that takes time.
    gone: Vec<Entry>,
}

/// Whether people ask for it as a job. A job that waited for a forwarder is one unless it was forwarded: then it is another
/// broker's.
fn is_job(topic: &str, headers: &Headers, state: State) -> bool {
    is_job_topic(topic) || state != State::Done && wire::is_job(topic, headers)
}

/// One of them, without its history.
pub(super) struct Entry {
    serial: u64,
    id: HashedId,
    /// The number of an older record of the same message.
    older: Option<u64>,
    record: Record,
    /// When its last run started, if that is known.
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

    /// Whether one like this is kept: making a record for nobody costs too much.
    pub(super) fn keeps(&self, topic: &str, headers: &Headers, state: State) -> bool {
        let kept = if is_job(topic, headers, state) { &self.jobs } else { &self.others };
        kept.capacity > 0
    }

    /// Adds a record. Returns the record of a job that had to go, if no other of that id is left: its id must go, too, or
    /// a repeat would be the duplicate of a job that does not exist.
    pub(super) fn push(&mut self, entry: Entry) -> Option<&Record> {
        let record = &entry.record;
        let is_job = is_job(&record.topic, &record.message.headers, record.state);
        let kept = if is_job { &mut self.jobs } else { &mut self.others };
        let oldest = kept.make_room();
        let place = |record: &Record| (record.topic.clone(), record.subscription.clone(), record.state);
        // Mostly one goes for another of its kind.
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

    /// What had to go since this was last asked, to be dropped by somebody who has time.
    pub(super) fn take_gone(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.gone)
    }

    /// All of them, without their history.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        let entries = self.others.entries.iter().chain(&self.jobs.entries);
        entries.map(|entry| (entry.serial, &entry.record))
    }

    /// Those of one message, with their history, the youngest first.
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

/// So many records, oldest first.
struct Kept {
    capacity: usize,
    entries: VecDeque<Entry>,
    /// How many have gone: the number of the first.
    gone: u64,
    /// The number of the youngest record of each message.
    youngest: IdMap<u64>,
}

impl Kept {
    fn new(capacity: usize) -> Self {
        Self { capacity, entries: VecDeque::new(), gone: 0, youngest: IdMap::default() }
    }

    /// Takes out the oldest if there is no room for one more. Also returns whether no other of its message is left.
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
