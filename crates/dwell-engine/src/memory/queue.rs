//! A subscription with its ready and leased messages.

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

/// Receivers to wake after the lock is released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    Nobody,
    /// A message is ready: wakes one receiver, which wakes the next one if it leaves messages.
    One,
    /// A timer is too late: wakes all waiting receivers.
    All,
}

enum Slot {
    Item(Item),
    /// Represents the messages of this key that are set aside.
    Turn(Bytes),
}

pub(super) struct Queue {
    pub(super) topic: TopicAt,
    pub(super) name: Text,
    /// Declared settings. `None` for the kept messages of a topic without subscriptions.
    pub(super) declared: Option<Subscription>,
    /// Subscription that adopted this one. Returned messages go there.
    pub(super) adopted_by: Option<QueueAt>,
    /// Subscription that this one adopted. Its leases come back here.
    pub(super) adopted: Option<QueueAt>,
    ready: VecDeque<Slot>,
    /// Number of messages in `ready` and set aside.
    ready_messages: usize,
    /// Next `order` at the back, and last one at the front.
    back: u64,
    front: u64,
    keys: Keys,
    pub(super) leases: Leases,
    /// Pending messages for this subscription only.
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

    /// Takes these settings. If the subscription becomes ordered, the order starts with the current
    /// leases.
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

    /// A subscription that was never declared keeps the order.
    fn is_ordered(&self) -> bool {
        self.declared.as_ref().is_none_or(|subscription| subscription.ordered)
    }

    /// Returns the number of messages for this subscription, which `capacity` limits.
    pub(super) fn len(&self) -> usize {
        self.ready_messages + self.leases.len() + self.waits.total()
    }

    /// Returns the number of ready messages.
    pub(super) fn ready(&self) -> usize {
        self.ready_messages
    }

    /// Adds a message at the back.
    pub(super) fn push(&mut self, mut item: Item) {
        item.order = self.back;
        self.back += 1;
        self.ready.push_back(Slot::Item(item));
        self.ready_messages += 1;
    }

    /// Returns the next message that `consumer` may take. Sets at most `steps` others aside.
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

    /// Whether any consumer may find a message.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Records that a message is not leased any more. Returns whether other messages of its key are
    /// available now.
    pub(super) fn left(&mut self, item: &Item) -> bool {
        let Some(key) = item.message.key.as_ref().filter(|_| self.is_ordered()) else { return false };
        let has_turn = self.keys.leave(key);
        if has_turn {
            self.ready.push_front(Slot::Turn(key.clone()));
        }
        has_turn
    }

    /// Returns leased messages to the front, in this order.
    pub(super) fn give_back(&mut self, items: Vec<Item>) {
        self.put_front(items, Keys::give_back);
    }

    /// Takes over messages of another queue at the front, in this order.
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

    /// Takes all ready messages, in order.
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

    /// Iterates over the ready messages, in no particular order.
    pub(super) fn iter_ready(&self) -> impl Iterator<Item = &Item> {
        let ready = self.ready.iter().filter_map(|slot| match slot {
            Slot::Item(item) => Some(item),
            Slot::Turn(_) => None,
        });
        ready.chain(self.keys.aside())
    }

    /// Removes one ready message.
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
