//! The records of messages that are gone, as many as the settings keep.

use super::tally::Tally;
use dwell_core::{Count, Record};
use std::collections::VecDeque;

/// Done, discarded and cancelled messages, oldest first.
pub(super) struct Finished {
    capacity: usize,
    /// With the serial of each.
    records: VecDeque<(u64, Record)>,
    tally: Tally,
}

impl Finished {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, records: VecDeque::new(), tally: Tally::default() }
    }

    /// Whether any are kept: making a record for nobody costs too much.
    pub(super) fn keeps_any(&self) -> bool {
        self.capacity > 0
    }

    pub(super) fn push(&mut self, serial: u64, record: Record) {
        if self.capacity == 0 {
            return;
        }
        if self.records.len() == self.capacity
            && let Some((_, oldest)) = self.records.pop_front()
        {
            self.tally.remove(oldest.topic, oldest.subscription, oldest.state);
        }
        self.tally.add(record.topic.clone(), record.subscription.clone(), record.state);
        self.records.push_back((serial, record));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.records.iter().map(|(serial, record)| (*serial, record))
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> {
        self.tally.counts()
    }
}
