//! What waits in one topic, by due time and by id.

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

/// A message that waits.
pub(super) struct Waiting {
    /// Its schedule id.
    pub(super) id: HashedId,
    /// The subscription that it is for alone; `None` fans out, when due, to those subscribed then.
    pub(super) queue: Option<QueueAt>,
    /// For a user's send under an id of the user's own.
    pub(super) chosen: Option<Box<Chosen>>,
    /// Whether it was sent as a copy, which a repeated settlement sends again.
    pub(super) is_copy: bool,
    /// What it waits for.
    pub(super) state: State,
    /// Who said last when it is due, if somebody has changed that. Boxed, because hardly any message has one.
    pub(super) rescheduled_by: Option<Box<Text>>,
    pub(super) item: Item,
}

/// What a user said about an id of the user's own.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    /// What to do if it is known.
    pub(super) on_conflict: OnConflict,
    /// The hash of the content.
    pub(super) content: u128,
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
pub(super) struct Waitlist {
    /// The name of the topic.
    topic: Text,
    wheel: Wheel<Waiting>,
    ids: IdMap<Key>,
    /// All but plain publishes, by message. The name of a publish is found from its message and the topic: most entries
    /// are publishes, and one index is enough for them.
    others: IdMap<Keys>,
}

/// The entries of one message, in the order of arrival. Those that have left are taken out together, once they are half of
/// all: a message may have thousands, and each that leaves must not look at all others.
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

    /// Nothing may wait under the same id: see [`Waitlist::find`].
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

    /// What waits under this schedule id.
    pub(super) fn find(&self, id: &HashedId) -> Option<Key> {
        self.ids.get(id).copied()
    }

    /// All entries of this message.
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

    /// Takes out up to `max` that are due, in order of their due times.
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

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Timestamp, &Waiting)> {
        self.wheel.iter().map(|(_, due, waiting)| (due, waiting))
    }

    /// Takes what has left the wheel out of the index.
    fn forget(&mut self, waiting: &Waiting, hasher: &IdHasher) {
        self.ids.remove(&waiting.id);
        let Some(message) = self.other(waiting, hasher) else { return };
        let is_there = |key| self.wheel.get(key).is_some();
        if self.others.get_mut(&message).is_some_and(|keys| keys.forget_one(is_there)) {
            self.others.remove(&message);
        }
    }

    /// The message of an entry that is no plain publish.
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
    fn what_has_left_is_in_no_index() {
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
