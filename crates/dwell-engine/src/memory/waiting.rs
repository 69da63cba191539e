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
    /// All but plain publishes, by message. The name of a publish is found from its message and the
    /// topic: most entries are publishes, and one index is enough for them.
    others: IdMap<Keys>,
}

/// The entries of one message, in the order of arrival. Those that have left are taken out
/// together, once they are half of all: a message may have thousands, and each that leaves must not
/// look at all others.
#[derive(Default)]
struct Keys {
    keys: Vec<Key>,
    /// How many of them have left.
    gone: usize,
}

impl Keys {
    /// One more has left. Returns whether that was the last one.
    fn forget_one(&mut self, is_there: impl Fn(Key) -> bool) -> bool {
        self.gone += 1;
        if self.gone * 2 >= self.keys.len() {
            self.keys.retain(|key| is_there(*key));
            self.gone = 0;
        }
        self.keys.is_empty()
    }
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
                Some(entries) => entries.keys.push(key),
                None => _ = self.others.insert(message, Keys { keys: vec![key], gone: 0 }),
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
        let others = self.others.get(&hasher.of_message(message)).into_iter().flat_map(|of| &of.keys);
        let others = others.copied().filter(|key| self.wheel.get(*key).is_some());
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
        let is_there = |key| self.wheel.get(key).is_some();
        if self.others.get_mut(&message).is_some_and(|keys| keys.forget_one(is_there)) {
            self.others.remove(&message);
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
    use std::cell::Cell;

    #[test]
    fn removed_entries_are_not_indexed() {
        let (mut list, hasher) = (Waitlist::new("orders".into()), IdHasher::default());
        let ids = ["a@orders", "a@orders/mail#1", "a@orders/stock#1"];
        for id in ids {
            list.insert(Timestamp(1), waiting(id, &hasher), &hasher);
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

    #[test]
    fn removing_all_entries_of_one_message_looks_at_each_a_few_times() {
        const COUNT: usize = 1000;
        let (mut list, hasher) = (Waitlist::new("orders".into()), IdHasher::default());
        let keys: Vec<_> = (0..COUNT)
            .map(|n| list.wheel.insert(Timestamp(1), waiting(&format!("a@orders#{n}"), &hasher)))
            .collect();
        let (mut entries, looks) = (Keys { keys: keys.clone(), gone: 0 }, Cell::new(0));
        for (n, key) in keys.into_iter().enumerate() {
            list.wheel.cancel(key);
            let is_there = |key| {
                looks.set(looks.get() + 1);
                list.wheel.get(key).is_some()
            };
            assert_eq!(entries.forget_one(is_there), n + 1 == COUNT);
        }
        assert!(looks.get() <= 2 * COUNT, "{} looks", looks.get());
    }

    fn waiting(id: &str, hasher: &IdHasher) -> Waiting {
        Waiting {
            id: hasher.of(&id.into()),
            queue: None,
            chosen: None,
            is_copy: false,
            state: State::Scheduled,
            rescheduled_by: None,
            item: new_item(Message::new("a", "t", ""), 1, Timestamp(1), Timestamp(0)),
        }
    }
}
