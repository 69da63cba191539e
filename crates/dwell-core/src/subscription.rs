//! What must be there before messages flow: topics and subscriptions.

use crate::{Address, Text, wire};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What becomes of a message sent to a topic that nobody subscribed to. Dead-letter channels and topics of commands
/// always keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unclaimed {
    /// Dropped: counted, and warned about once per topic.
    #[default]
    Discard,
    /// Kept in a subscription of the topic's own name; the first named subscription adopts what that one holds.
    Keep,
}

/// A topic, and what it does with messages that nobody subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: Text,
    /// For what nobody subscribed to.
    pub unclaimed: Unclaimed,
}

impl Topic {
    /// A topic that keeps what nobody subscribed to, if it is a dead-letter channel, and discards it if not.
    pub fn named(name: impl Into<Text>) -> Self {
        let name = name.into();
        let unclaimed = if wire::is_dead_letter_topic(&name) { Unclaimed::Keep } else { Unclaimed::Discard };
        Self { name, unclaimed }
    }

    /// The same, keeping.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.unclaimed = Unclaimed::Keep;
        self
    }
}

/// What a consumer reads, and where its failures go: the settings that a transport needs. The pump has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// What it subscribes to.
    pub topic: Text,
    /// One copy of each message per name, shared by all consumers of that name.
    pub name: Text,
    /// How long a delivery is ours without an `extend`, where leases are timed.
    pub lease: Duration,
    /// Whether messages with one key are handed out one after the other, where the transport declares `key_order`.
    pub ordered: bool,
    /// Where rejected messages go. `None` is an explicit "discard", never a default.
    pub dead_letter: Option<Address>,
    /// Where unreadable messages go; to the dead letters if `None`.
    pub invalid: Option<Address>,
}

impl Subscription {
    /// With the defaults: a lease of 30 s, ordered, dead letters to `{topic}.dlq`. A subscription of a dead-letter
    /// channel has no such channel itself.
    pub fn new(topic: impl Into<Text>, name: impl Into<Text>) -> Self {
        let (topic, name) = (topic.into(), name.into());
        let dead_letter =
            (!wire::is_dead_letter_topic(&topic)).then(|| Address::Topic(format!("{topic}.dlq").into()));
        Self { topic, name, lease: Duration::from_secs(30), ordered: true, dead_letter, invalid: None }
    }

    /// This subscription alone.
    pub fn address(&self) -> Address {
        Address::Subscription { topic: self.topic.clone(), name: self.name.clone() }
    }

    /// The channels that its failures go to.
    pub fn channels(&self) -> impl Iterator<Item = &Address> {
        self.dead_letter.iter().chain(&self.invalid)
    }
}

/// What to do about topics, queues and groups that are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// Make them. Idempotent, safe to race, never changes what exists.
    #[default]
    Create,
    /// Fail, naming all of them.
    Validate,
    /// Do not look: needs no admin rights.
    Assume,
}
