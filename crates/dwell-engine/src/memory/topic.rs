//! A topic with its subscriptions and pending messages.

use super::{
    state::QueueAt,
    waiting::{Waitlist, Waits},
};
use dwell_core::{Text, Timestamp, Unclaimed, wire};
use std::collections::BTreeMap;

pub(super) struct Topic {
    pub(super) name: Text,
    pub(super) unclaimed: Unclaimed,
    /// Whether this is a dead-letter or invalid channel.
    pub(super) is_dead: bool,
    /// Declared subscriptions, in the order of their creation.
    pub(super) subscribed: Vec<QueueAt>,
    pub(super) names: BTreeMap<Text, QueueAt>,
    /// Queue of messages without a subscription, until the first one is declared.
    pub(super) kept: Option<QueueAt>,
    pub(super) waiting: Waitlist,
    /// Numbers of pending publishes.
    pub(super) publishes: Waits,
    /// Time by which every waiting receiver of this topic wakes up, or was already woken. `None`
    /// means never.
    pub(super) told: Option<Timestamp>,
    /// Number of dropped messages.
    pub(super) discarded: u64,
}

impl Topic {
    pub(super) fn new(name: Text, unclaimed: Unclaimed) -> Self {
        Self {
            is_dead: wire::is_dead_letter_topic(&name),
            waiting: Waitlist::new(name.clone()),
            name,
            unclaimed,
            subscribed: Vec::new(),
            names: BTreeMap::new(),
            kept: None,
            publishes: Waits::default(),
            told: None,
            discarded: 0,
        }
    }

    /// Whether this is the kept subscription with the topic's name.
    pub(super) fn keeps(&self, subscription: &str) -> bool {
        self.unclaimed == Unclaimed::Keep && self.subscribed.is_empty() && *self.name == *subscription
    }

    /// Records that a message is due at `due`. Returns whether that is earlier than the waiting
    /// receivers know.
    pub(super) fn expect(&mut self, due: Timestamp) -> bool {
        let is_earlier = self.told.is_none_or(|told| due < told);
        if is_earlier {
            self.told = Some(due);
        }
        is_earlier
    }
}
