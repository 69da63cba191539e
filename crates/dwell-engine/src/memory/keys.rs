//! Order per key between competing consumers: a key that one consumer holds is not handed to another.
//!
//! A key is *held* while a message with it is in a consumer's hands. What the others meet of it meanwhile is put
//! *aside*, in order. A *turn* in the ready queue stands for what lies aside: whoever comes to it takes from there, if
//! the key is free or already theirs. So every message is set aside at most once, however often its key changes hands.
//!
//! * What lies aside of a key was in the queue before all of that key which is still ready.
//! * A key that is free, and has something aside, has a turn in the ready queue, before all of that key.

use super::item::Item;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

/// No consumer has this number.
const NOBODY: u64 = 0;

#[derive(Default)]
pub(super) struct Keys(BTreeMap<Bytes, Key>);

struct Key {
    /// Who holds it, or held it last.
    consumer: u64,
    /// How many messages with it are in that one's hands.
    held: usize,
    aside: VecDeque<Item>,
    /// Whether there is a turn of it in the ready queue.
    has_turn: bool,
}

impl Key {
    /// The next message for `consumer`, which takes the key.
    fn take(&mut self, consumer: u64) -> Option<Item> {
        let item = self.aside.pop_front()?;
        self.consumer = consumer;
        self.held += 1;
        Some(item)
    }

    fn is_free_for(&self, consumer: u64) -> bool {
        self.held == 0 || self.consumer == consumer
    }
}

/// What became of a turn.
pub(super) struct Turn {
    pub(super) item: Option<Item>,
    /// Something is still aside for the same consumer: the turn goes back to the front.
    pub(super) goes_on: bool,
}

impl Keys {
    /// A message with this key was leased while no order was kept. If several consumers have one, the key is free for none
    /// of them until all are settled.
    pub(super) fn hold(&mut self, key: Bytes, consumer: u64) {
        let state = self.0.entry(key).or_insert_with(|| Key {
            consumer,
            held: 0,
            aside: VecDeque::new(),
            has_turn: false,
        });
        state.held += 1;
        if state.consumer != consumer {
            state.consumer = NOBODY;
        }
    }

    /// A message came up: it is returned if `consumer` may have it, or what lay aside before it; else it is put aside.
    pub(super) fn admit(&mut self, key: Bytes, item: Item, consumer: u64) -> Option<Item> {
        match self.0.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Key { consumer, held: 1, aside: VecDeque::new(), has_turn: false });
                Some(item)
            }
            Entry::Occupied(mut entry) => {
                let key = entry.get_mut();
                if key.is_free_for(consumer) && key.aside.is_empty() {
                    key.consumer = consumer;
                    key.held += 1;
                    return Some(item);
                }
                key.aside.push_back(item);
                if key.is_free_for(consumer) { key.take(consumer) } else { None }
            }
        }
    }

    /// The turn of a key came up.
    pub(super) fn turn(&mut self, key: &Bytes, consumer: u64) -> Turn {
        let Some(state) = self.0.get_mut(key) else { return Turn { item: None, goes_on: false } };
        state.has_turn = false;
        if !state.is_free_for(consumer) {
            return Turn { item: None, goes_on: false };
        }
        let item = state.take(consumer);
        state.has_turn = !state.aside.is_empty();
        let goes_on = state.has_turn;
        if item.is_none() && state.held == 0 {
            self.0.remove(key);
        }
        Turn { item, goes_on }
    }

    /// A message with this key left its consumer's hands for good. Returns whether the key needs a turn.
    pub(super) fn leave(&mut self, key: &Bytes) -> bool {
        let Some(state) = self.0.get_mut(key) else { return false };
        state.held = state.held.saturating_sub(1);
        if state.held > 0 || state.has_turn {
            return false;
        }
        if state.aside.is_empty() {
            self.0.remove(key);
            return false;
        }
        state.has_turn = true;
        true
    }

    /// A message came back from its consumer's hands. Returns whether the key needs a turn.
    pub(super) fn give_back(&mut self, key: &Bytes, item: Item) -> bool {
        if let Some(state) = self.0.get_mut(key) {
            state.held = state.held.saturating_sub(1);
        }
        self.put_aside(key, item)
    }

    /// Puts a message aside, in its place. Returns whether the key needs a turn.
    pub(super) fn put_aside(&mut self, key: &Bytes, item: Item) -> bool {
        let state = self.0.entry(key.clone()).or_insert_with(|| Key {
            consumer: NOBODY,
            held: 0,
            aside: VecDeque::new(),
            has_turn: false,
        });
        let place = state.aside.partition_point(|other| other.order < item.order);
        state.aside.insert(place, item);
        !std::mem::replace(&mut state.has_turn, true)
    }

    /// What lies aside, key by key.
    pub(super) fn aside(&self) -> impl Iterator<Item = &Item> {
        self.0.values().flat_map(|key| &key.aside)
    }

    /// Takes out all that lies aside, and forgets the turns.
    pub(super) fn drain(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        self.0.retain(|_, key| {
            items.extend(key.aside.drain(..));
            key.has_turn = false;
            key.held > 0
        });
        items
    }

    /// Takes one message out of those aside.
    pub(super) fn remove(&mut self, serial: u64) -> Option<Item> {
        self.0.values_mut().find_map(|key| {
            let index = key.aside.iter().position(|item| item.serial == serial)?;
            key.aside.remove(index)
        })
    }
}
