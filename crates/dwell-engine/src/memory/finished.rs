//! The records of messages that are gone, as many as the settings keep.

use super::tally::Tally;
use dwell_core::{Count, MessageId, Record, is_job_topic};
use std::collections::{BTreeMap, VecDeque};

/// Done, discarded and cancelled messages. Jobs are kept apart, because people ask for them when they are over.
pub(super) struct Finished {
    others: Kept,
    jobs: Kept,
    tally: Tally,
}

impl Finished {
    pub(super) fn new(others: usize, jobs: usize) -> Self {
        Self { others: Kept::new(others), jobs: Kept::new(jobs), tally: Tally::default() }
    }

    /// Whether any of this topic are kept: making a record for nobody costs too much.
    pub(super) fn keeps(&self, topic: &str) -> bool {
        let kept = if is_job_topic(topic) { &self.jobs } else { &self.others };
        kept.capacity > 0
    }

    pub(super) fn push(&mut self, serial: u64, record: Record) {
        let kept = if is_job_topic(&record.topic) { &mut self.jobs } else { &mut self.others };
        self.tally.add(record.topic.clone(), record.subscription.clone(), record.state);
        if let Some(oldest) = kept.push(serial, record) {
            self.tally.remove(oldest.topic, oldest.subscription, oldest.state);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.others.iter().chain(self.jobs.iter())
    }

    /// Those of one message.
    pub(super) fn of<'a>(&'a self, id: &'a MessageId) -> impl Iterator<Item = (u64, &'a Record)> {
        self.others.of(id).chain(self.jobs.of(id))
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> {
        self.tally.counts()
    }
}

/// So many records, oldest first.
struct Kept {
    capacity: usize,
    /// With the serial of each.
    records: VecDeque<(u64, Record)>,
    /// How many have gone: the number of the first.
    gone: u64,
    /// The numbers of the records of each message.
    numbers: BTreeMap<MessageId, Vec<u64>>,
}

impl Kept {
    fn new(capacity: usize) -> Self {
        Self { capacity, records: VecDeque::new(), gone: 0, numbers: BTreeMap::new() }
    }

    /// Keeps one more. Returns the one that had to go for it.
    fn push(&mut self, serial: u64, record: Record) -> Option<Record> {
        if self.capacity == 0 {
            return Some(record);
        }
        let oldest = if self.records.len() == self.capacity { self.pop() } else { None };
        let number = self.gone + self.records.len() as u64;
        self.numbers.entry(record.message.id.clone()).or_default().push(number);
        self.records.push_back((serial, record));
        oldest
    }

    fn pop(&mut self) -> Option<Record> {
        let (_, oldest) = self.records.pop_front()?;
        if let Some(numbers) = self.numbers.get_mut(&oldest.message.id) {
            numbers.retain(|number| *number != self.gone);
            if numbers.is_empty() {
                self.numbers.remove(&oldest.message.id);
            }
        }
        self.gone += 1;
        Some(oldest)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.records.iter().map(|(serial, record)| (*serial, record))
    }

    fn of(&self, id: &MessageId) -> impl Iterator<Item = (u64, &Record)> {
        let numbers = self.numbers.get(id).into_iter().flatten();
        numbers.filter_map(|number| self.records.get((number - self.gone) as usize)).map(|(s, r)| (*s, r))
    }
}
