//! One topic: who subscribed to it, and what waits in it.

use super::{
    state::QueueAt,
    waiting::{Waitlist, Waits},
};
use dwell_core::{Text, Timestamp, Unclaimed, wire};
use std::collections::BTreeMap;

pub(super) struct Topic {
    pub(super) name: Text,
    pub(super) unclaimed: Unclaimed,
    /// What lies here was given up.
    pub(super) is_dead: bool,
    /// The subscriptions that somebody asked for, in the order in which they came.
    pub(super) subscribed: Vec<QueueAt>,
    pub(super) names: BTreeMap<Text, QueueAt>,
    /// Keeps what nobody subscribed to, until the first subscription comes.
    pub(super) kept: Option<QueueAt>,
    pub(super) waiting: Waitlist,
    /// The publishes among what waits.
    pub(super) publishes: Waits,
    /// Every receiver that waits on this topic wakes up by this time, or was told to look again; `None` is never.
    pub(super) told: Option<Timestamp>,
    /// How many messages nobody wanted.
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

    /// Whether the subscription of the topic's own name is there without anybody having asked for it.
    pub(super) fn keeps(&self, subscription: &str) -> bool {
        self.unclaimed == Unclaimed::Keep && self.subscribed.is_empty() && *self.name == *subscription
    }

    /// Something is due at `due`. Returns whether that is earlier than all who wait have been told.
    pub(super) fn expect(&mut self, due: Timestamp) -> bool {
        let is_earlier = self.told.is_none_or(|told| due < told);
        if is_earlier {
            self.told = Some(due);
        }
        is_earlier
    }
}
