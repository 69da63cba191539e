//! Pending messages of a topic, by due time and by id.

use super::{
    hashed::{HashedId, IdHasher, IdMap},
    item::Item,
    state::QueueAt,
};
use crate::planted::{Bug, planted};
use dwell_core::{
    MessageId, OnConflict, ScheduleId, State, Text, Timestamp,
    wheel::{Key, Wheel},
};

/// A pending message.
pub(super) struct Waiting {
    /// Schedule id.
    pub(super) id: HashedId,
    /// Subscription of the message. `None` for a publish, which is delivered to the subscriptions
    /// that exist when it is due.
    pub(super) queue: Option<QueueAt>,
    /// For a user's send with a chosen id.
    pub(super) chosen: Option<Box<Chosen>>,
    /// Whether it was sent as a copy, which a repeated settlement sends again.
    pub(super) is_copy: bool,
    /// State in the ledger: `Scheduled`, `Deferred` or `Retrying`.
    pub(super) state: State,
    /// Who rescheduled it last. Boxed, because few messages are rescheduled.
    pub(super) rescheduled_by: Option<Box<Text>>,
    pub(super) item: Item,
}

/// Options of a send with a chosen id.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    /// What to do if the id is known.
    pub(super) on_conflict: OnConflict,
    /// Content hash.
    pub(super) content: u128,
}

/// Numbers of pending messages, by state.
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

    /// Adds the numbers of another queue.
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

/// Pending messages of one topic.
///
/// The index contains exactly the entries of the wheel: an entry that replaces another one removes
/// it from both first. The key of the wheel has a generation, so an operation on one entry never
/// affects its successor.
pub(super) struct Waitlist {
    /// Name of the topic.
    topic: Text,
    wheel: Wheel<Waiting>,
    ids: IdMap<Key>,
    /// All entries except plain publishes, by message. The name of a publish is derived from its
    /// message and the topic. Most entries are publishes, so they need only one index.
    others: IdMap<Vec<Key>>,
}

impl Waitlist {
    pub(super) fn new(topic: Text) -> Self {
        Self { topic, wheel: Wheel::default(), ids: IdMap::default(), others: IdMap::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Adds an entry. No entry with the same id may exist: see [`Waitlist::find`].
    pub(super) fn insert(&mut self, due: Timestamp, waiting: Waiting, hasher: &IdHasher) {
        let due = if planted(Bug::WholeSeconds) { Timestamp(due.0 / 1000 * 1000) } else { due };
        let (id, other) = (waiting.id.clone(), self.other(&waiting, hasher));
        let key = self.wheel.insert(due, waiting);
        let before = self.ids.insert(id, key);
        debug_assert!(before.is_none() || planted(Bug::ReplacedStillFires), "two entries under one id");
        if let Some(message) = other {
            match self.others.get_mut(&message) {
                Some(keys) => keys.push(key),
                None => _ = self.others.insert(message, vec![key]),
            }
        }
    }

    /// Returns the entry with this schedule id.
    pub(super) fn find(&self, id: &HashedId) -> Option<Key> {
        self.ids.get(id).copied()
    }

    /// Returns all entries of this message.
    pub(super) fn of_message(&self, message: &MessageId, hasher: &IdHasher) -> Vec<Key> {
        let publish = self.find(&hasher.of(&ScheduleId::of_publish(&message.0, &self.topic).0));
        let others = self.others.get(&hasher.of_message(message)).into_iter().flatten().copied();
        publish.into_iter().chain(others).collect()
    }

    pub(super) fn get(&self, key: Key) -> Option<(Timestamp, &Waiting)> {
        self.wheel.get(key)
    }

    pub(super) fn remove(&mut self, key: Key, hasher: &IdHasher) -> Option<Waiting> {
        let waiting = self.wheel.cancel(key)?;
        self.forget(&waiting, hasher);
        Some(waiting)
    }

    pub(super) fn reschedule(&mut self, key: Key, due: Timestamp, now: Timestamp, by: Text) {
        if let Some((_, waiting)) = self.wheel.get_mut(key) {
            waiting.item.updated_at = now;
            waiting.rescheduled_by = Some(Box::new(by));
            self.wheel.reschedule(key, due);
        }
    }

    pub(super) fn next_due(&mut self) -> Option<Timestamp> {
        self.wheel.next_due()
    }

    /// Takes up to `max` due entries, in order of their due times.
    pub(super) fn pop_due(
        &mut self,
        now: Timestamp,
        max: usize,
        into: &mut Vec<(Timestamp, Waiting)>,
        hasher: &IdHasher,
    ) {
        let before = into.len();
        self.wheel.pop_due(now, max, into);
        for (_, waiting) in &into[before..] {
            self.forget(waiting, hasher);
        }
    }

    /// Iterates over all entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Waiting)> {
        self.wheel.iter().map(|(_, due, waiting)| (due, waiting))
    }

    /// Removes an entry, which has left the wheel, from the index.
    fn forget(&mut self, waiting: &Waiting, hasher: &IdHasher) {
        self.ids.remove(&waiting.id);
        let Some(message) = self.other(waiting, hasher) else { return };
        if let Some(keys) = self.others.get_mut(&message) {
            keys.retain(|key| self.wheel.get(*key).is_some());
            if keys.is_empty() {
                self.others.remove(&message);
            }
        }
    }

    /// Returns the message of an entry that is not a plain publish.
    fn other(&self, waiting: &Waiting, hasher: &IdHasher) -> Option<HashedId> {
        let message = &waiting.item.message.id;
        let is_publish = ScheduleId::published(&waiting.id.id, &self.topic) == Some(&*message.0);
        (!is_publish).then(|| hasher.of_message(message))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::item::new_item, *};
    use dwell_core::Message;

    #[test]
    fn removed_entries_are_not_indexed() {
        let (mut list, hasher) = (Waitlist::new("orders".into()), IdHasher::default());
        let ids = ["a@orders", "a@orders/mail#1", "a@orders/stock#1"];
        for id in ids {
            let item = new_item(Message::new("a", "t", ""), 1, Timestamp(1), Timestamp(0));
            let id = hasher.of(&id.into());
            let waiting = Waiting {
                id,
                queue: None,
                chosen: None,
                is_copy: false,
                state: State::Scheduled,
                rescheduled_by: None,
                item,
            };
            list.insert(Timestamp(1), waiting, &hasher);
        }
        let message = MessageId::from("a");
        assert_eq!(list.of_message(&message, &hasher).len(), 3);
        let key = list.find(&hasher.of(&ids[1].into())).unwrap();
        assert!(list.remove(key, &hasher).is_some() && list.remove(key, &hasher).is_none());
        assert_eq!(list.of_message(&message, &hasher).len(), 2);
        let mut due = Vec::new();
        list.pop_due(Timestamp(1), 10, &mut due, &hasher);
        assert_eq!(due.len(), 2);
        assert!(list.others.get(&hasher.of_message(&message)).is_none());
        assert!(ids.iter().all(|id| list.find(&hasher.of(&(*id).into())).is_none()));
    }
}
