//! What waits in one topic, by due time and by id.

use super::{item::Item, state::QueueAt};
use dwell_core::{
    MessageId, OnConflict, ScheduleId, State, Timestamp,
    wheel::{Key, Wheel},
};
use std::collections::HashMap;

/// A message that waits.
pub(super) struct Waiting {
    pub(super) id: ScheduleId,
    /// The subscription that it is for alone; `None` fans out, when due, to those subscribed then.
    pub(super) queue: Option<QueueAt>,
    /// For a user's send under an id of the user's own: what a known id meant, and the hash of the content.
    pub(super) chosen: Option<(OnConflict, u128)>,
    /// What it waits for.
    pub(super) state: State,
    pub(super) item: Item,
}

/// How many wait, by what they wait for.
#[derive(Clone, Copy, Default)]
pub(super) struct Waits {
    scheduled: usize,
    deferred: usize,
    retrying: usize,
}

impl Waits {
    fn of(&mut self, state: State) -> &mut usize {
        match state {
            State::Deferred => &mut self.deferred,
            State::Retrying => &mut self.retrying,
            _ => &mut self.scheduled,
        }
    }

    pub(super) fn add(&mut self, state: State) {
        *self.of(state) += 1;
    }

    pub(super) fn remove(&mut self, state: State) {
        *self.of(state) -= 1;
    }

    /// Takes over the counts of another.
    pub(super) fn absorb(&mut self, other: Self) {
        self.scheduled += other.scheduled;
        self.deferred += other.deferred;
        self.retrying += other.retrying;
    }

    pub(super) fn total(&self) -> usize {
        self.scheduled + self.deferred + self.retrying
    }

    pub(super) fn by_state(&self) -> [(State, usize); 3] {
        [
            (State::Scheduled, self.scheduled),
            (State::Deferred, self.deferred),
            (State::Retrying, self.retrying),
        ]
    }
}

/// What waits in one topic.
///
/// Every entry of the wheel is in the index under its id, and nothing else is: what replaces an entry takes it out of
/// both first. The wheel's key is the entry's generation, so nothing that happens to one entry can touch its successor.
#[derive(Default)]
pub(super) struct Waitlist {
    wheel: Wheel<Box<Waiting>>,
    ids: HashMap<ScheduleId, Key>,
    /// What was handled before waits under an id that is not its message's: found by its message here.
    copies: HashMap<MessageId, Vec<Key>>,
}

impl Waitlist {
    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Nothing may wait under the same id: see [`Waitlist::find`].
    pub(super) fn insert(&mut self, due: Timestamp, waiting: Waiting) {
        let id = waiting.id.clone();
        let message = (id.0 != waiting.item.message.id.0).then(|| waiting.item.message.id.clone());
        let key = self.wheel.insert(due, Box::new(waiting));
        let before = self.ids.insert(id, key);
        debug_assert!(before.is_none(), "two entries under one id");
        if let Some(message) = message {
            self.copies.entry(message).or_default().push(key);
        }
    }

    pub(super) fn find(&self, id: &ScheduleId) -> Option<Key> {
        self.ids.get(id).copied()
    }

    /// All that waits of this message.
    pub(super) fn of_message(&self, message: &MessageId) -> Vec<Key> {
        let under_its_own = self
            .find(&ScheduleId(message.0.clone()))
            .filter(|key| self.get(*key).is_some_and(|(_, waiting)| waiting.item.message.id == *message));
        let copies = self.copies.get(message).into_iter().flatten().copied();
        under_its_own.into_iter().chain(copies).collect()
    }

    pub(super) fn get(&self, key: Key) -> Option<(Timestamp, &Waiting)> {
        self.wheel.get(key).map(|(due, waiting)| (due, &**waiting))
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Waiting> {
        let waiting = self.wheel.cancel(key)?;
        self.forget(&waiting, |other| other == key);
        Some(*waiting)
    }

    pub(super) fn reschedule(&mut self, key: Key, due: Timestamp, now: Timestamp) {
        if let Some((_, waiting)) = self.wheel.get_mut(key) {
            waiting.item.updated_at = now;
            self.wheel.reschedule(key, due);
        }
    }

    pub(super) fn next_due(&mut self) -> Option<Timestamp> {
        self.wheel.next_due()
    }

    /// Takes out up to `max` that are due, in order of their due times.
    pub(super) fn pop_due(&mut self, now: Timestamp, max: usize, into: &mut Vec<(Timestamp, Box<Waiting>)>) {
        let before = into.len();
        self.wheel.pop_due(now, max, into);
        for (_, waiting) in &into[before..] {
            self.ids.remove(&waiting.id);
        }
        if !self.copies.is_empty() {
            for (_, waiting) in &into[before..] {
                let wheel = &self.wheel;
                Self::forget_copy(&mut self.copies, waiting, |key| wheel.get(key).is_none());
            }
        }
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Waiting)> {
        self.wheel.iter().map(|(_, due, waiting)| (due, &**waiting))
    }

    fn forget(&mut self, waiting: &Waiting, is_it: impl Fn(Key) -> bool) {
        self.ids.remove(&waiting.id);
        Self::forget_copy(&mut self.copies, waiting, is_it);
    }

    fn forget_copy(
        copies: &mut HashMap<MessageId, Vec<Key>>,
        waiting: &Waiting,
        is_it: impl Fn(Key) -> bool,
    ) {
        let message = &waiting.item.message.id;
        if waiting.id.0 == message.0 {
            return;
        }
        if let Some(keys) = copies.get_mut(message) {
            keys.retain(|key| !is_it(*key));
            if keys.is_empty() {
                copies.remove(message);
            }
        }
    }
}
