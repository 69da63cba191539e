//! One subscription: what is ready, and what is in its consumers' hands.

use super::{
    item::Item,
    keys::Keys,
    leases::Leases,
    receivers::Receivers,
    state::{QueueAt, TopicAt},
    waiting::Waits,
};
use bytes::Bytes;
use dwell_core::{Subscription, Text};
use std::{collections::VecDeque, sync::Arc};

/// Whom to tell once the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    Nobody,
    /// Something is ready: one receiver, which tells the next if it leaves something.
    One,
    /// Something will happen earlier than was said: everyone that waits.
    All,
}

enum Slot {
    Item(Item),
    /// Stands for what lies aside of this key.
    Turn(Bytes),
}

pub(super) struct Queue {
    pub(super) topic: TopicAt,
    pub(super) name: Text,
    /// `None` for what a topic keeps by itself, as long as nobody subscribed to it.
    pub(super) declared: Option<Subscription>,
    /// The first named subscription took over what this one held; all that comes back goes there.
    pub(super) adopted_by: Option<QueueAt>,
    /// The one that this one took over: its leases come back here.
    pub(super) adopted: Option<QueueAt>,
    ready: VecDeque<Slot>,
    /// Messages in `ready` and aside.
    ready_messages: usize,
    /// The orders given out, to the back and to the front.
    back: u64,
    front: u64,
    keys: Keys,
    pub(super) leases: Leases,
    /// What waits for this subscription alone.
    pub(super) waits: Waits,
    pub(super) signal: Signal,
    pub(super) receivers: Arc<Receivers>,
}

impl Queue {
    pub(super) fn new(topic: TopicAt, name: Text, declared: Option<Subscription>) -> Self {
        Self {
            topic,
            name,
            declared,
            adopted_by: None,
            adopted: None,
            ready: VecDeque::new(),
            ready_messages: 0,
            back: 1 << 63,
            front: 1 << 63,
            keys: Keys::default(),
            leases: Leases::default(),
            waits: Waits::default(),
            signal: Signal::Nobody,
            receivers: Arc::default(),
        }
    }

    /// Takes these settings. If the order of keys changes with them, it starts from the current leases.
    pub(super) fn declare(&mut self, subscription: Subscription) {
        let was_ordered = self.is_ordered();
        self.declared = Some(subscription);
        if self.is_ordered() == was_ordered {
            return;
        }
        let items = self.drain();
        self.keys = Keys::default();
        if self.is_ordered() {
            let leased = self.leases.iter().filter(|lease| lease.item.is_keyed);
            for (key, consumer) in
                leased.filter_map(|lease| Some((lease.item.message.key.clone()?, lease.consumer)))
            {
                self.keys.hold(key, consumer);
            }
        }
        self.adopt(items);
    }

    /// What was never declared keeps order: nobody said that it need not.
    fn is_ordered(&self) -> bool {
        self.declared.as_ref().is_none_or(|subscription| subscription.ordered)
    }

    /// All that is held for this subscription: what its capacity bounds.
    pub(super) fn len(&self) -> usize {
        self.ready_messages + self.leases.len() + self.waits.total()
    }

    /// Due, and in nobody's hands.
    pub(super) fn ready(&self) -> usize {
        self.ready_messages
    }

    /// Behind all that is ready.
    pub(super) fn push(&mut self, mut item: Item) {
        item.order = self.back;
        self.back += 1;
        self.ready.push_back(Slot::Item(item));
        self.ready_messages += 1;
    }

    /// The next message that `consumer` may have. `steps` bounds how many others are put aside on the way.
    pub(super) fn pop(&mut self, consumer: u64, steps: &mut usize) -> Option<Item> {
        let ordered = self.is_ordered();
        while *steps > 0 {
            let item = match self.ready.pop_front()? {
                Slot::Item(item) => {
                    match (ordered && item.is_keyed).then(|| item.message.key.clone()).flatten() {
                        None => Some(item),
                        Some(key) => self.keys.admit(key, item, consumer),
                    }
                }
                Slot::Turn(key) => {
                    let turn = self.keys.turn(&key, consumer);
                    if turn.goes_on {
                        self.ready.push_front(Slot::Turn(key));
                    }
                    turn.item
                }
            };
            if let Some(item) = item {
                self.ready_messages -= 1;
                return Some(item);
            }
            *steps -= 1;
        }
        None
    }

    /// Whether there is anything to pop, for someone.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A message left its consumer's hands for good. Returns whether others of its key can be had now.
    pub(super) fn left(&mut self, item: &Item) -> bool {
        let Some(key) = item.message.key.as_ref().filter(|_| self.is_ordered()) else { return false };
        let has_turn = self.keys.leave(key);
        if has_turn {
            self.ready.push_front(Slot::Turn(key.clone()));
        }
        has_turn
    }

    /// Puts back what came from consumers' hands: before all that is ready, and in this order.
    pub(super) fn give_back(&mut self, items: Vec<Item>) {
        self.put_front(items, Keys::give_back);
    }

    /// Takes over what another queue held: before all that is ready, and in this order.
    pub(super) fn adopt(&mut self, mut items: Vec<Item>) {
        self.front -= items.len() as u64;
        (self.front..).zip(&mut items).for_each(|(order, item)| item.order = order);
        self.put_front(items, Keys::put_aside);
    }

    fn put_front(&mut self, items: Vec<Item>, put: fn(&mut Keys, &Bytes, Item) -> bool) {
        self.ready_messages += items.len();
        let ordered = self.is_ordered();
        let mut front = Vec::with_capacity(items.len());
        for item in items {
            match item.message.key.clone().filter(|_| ordered) {
                None => front.push(Slot::Item(item)),
                Some(key) => {
                    if put(&mut self.keys, &key, item) {
                        front.push(Slot::Turn(key));
                    }
                }
            }
        }
        for slot in front.into_iter().rev() {
            self.ready.push_front(slot);
        }
    }

    /// Takes out all that is ready, in order.
    pub(super) fn drain(&mut self) -> Vec<Item> {
        let mut items = self.keys.drain();
        items.extend(self.ready.drain(..).filter_map(|slot| match slot {
            Slot::Item(item) => Some(item),
            Slot::Turn(_) => None,
        }));
        items.sort_by_key(|item| item.order);
        self.ready_messages = 0;
        items
    }

    /// All that is ready, in no order.
    pub(super) fn iter_ready(&self) -> impl Iterator<Item = &Item> {
        let ready = self.ready.iter().filter_map(|slot| match slot {
            Slot::Item(item) => Some(item),
            Slot::Turn(_) => None,
        });
        ready.chain(self.keys.aside())
    }

    /// Takes one message out of those that are ready.
    pub(super) fn remove(&mut self, serial: u64) -> Option<Item> {
        let index = self.ready.iter().position(|slot| match slot {
            Slot::Item(item) => item.serial == serial,
            Slot::Turn(_) => false,
        });
        let item = match index.and_then(|index| self.ready.remove(index)) {
            Some(Slot::Item(item)) => Some(item),
            _ => self.keys.remove(serial),
        };
        self.ready_messages -= usize::from(item.is_some());
        item
    }
}
