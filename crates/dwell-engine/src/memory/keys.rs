//! Order per key between competing consumers: a key that one consumer holds is not delivered to
//! another.
//!
//! A key is *held* while a message with it is leased. If other consumers find messages with this
//! key meanwhile, they set them *aside*, in order. A *turn* in the ready queue represents the
//! messages that are set aside: a consumer that finds the turn takes the next one, if the key is
//! free or its own. Every message is set aside at most once, however often its key changes
//! consumers.
//!
//! * Messages of a key that are set aside were queued before all ready messages of this key.
//! * A free key with messages set aside has a turn in the ready queue, before all messages of this
//!   key.

use super::item::Item;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque, btree_map::Entry};

/// Number that no consumer has.
const NOBODY: u64 = 0;

#[derive(Default)]
pub(super) struct Keys(BTreeMap<Bytes, Key>);

struct Key {
    /// Consumer that holds the key, or held it last.
    consumer: u64,
    /// Number of leased messages with this key.
    held: usize,
    aside: VecDeque<Item>,
    /// Whether the ready queue contains a turn of the key.
    has_turn: bool,
}

impl Key {
    /// Takes the next message, and the key, for `consumer`.
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

/// Result of a turn.
pub(super) struct Turn {
    pub(super) item: Option<Item>,
    /// Whether more messages are set aside for the same consumer. The turn then returns to the
    /// front.
    pub(super) goes_on: bool,
}

impl Keys {
    /// Records a message with this key that was leased while the queue kept no order. If several
    /// consumers have one, the key is not free for any of them until all messages are settled.
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

    /// Admits a ready message. Returns it, or an earlier message that was set aside, if `consumer`
    /// may take the key. Otherwise the message is set aside.
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

    /// Processes the turn of a key.
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

    /// Records that a message with this key is not leased any more. Returns whether the key needs a
    /// turn.
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

    /// Returns a leased message to its key. Returns whether the key needs a turn.
    pub(super) fn give_back(&mut self, key: &Bytes, item: Item) -> bool {
        if let Some(state) = self.0.get_mut(key) {
            state.held = state.held.saturating_sub(1);
        }
        self.put_aside(key, item)
    }

    /// Sets a message aside, in its position. Returns whether the key needs a turn.
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

    /// Iterates over the messages that are set aside, by key.
    pub(super) fn aside(&self) -> impl Iterator<Item = &Item> {
        self.0.values().flat_map(|key| &key.aside)
    }

    /// Takes all messages that are set aside, and removes the turns.
    pub(super) fn drain(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        self.0.retain(|_, key| {
            items.extend(key.aside.drain(..));
            key.has_turn = false;
            key.held > 0
        });
        items
    }

    /// Removes one of the messages that are set aside.
    pub(super) fn remove(&mut self, serial: u64) -> Option<Item> {
        self.0.values_mut().find_map(|key| {
            let index = key.aside.iter().position(|item| item.serial == serial)?;
            key.aside.remove(index)
        })
    }
}
