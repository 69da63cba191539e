//! The state of a memory transport, behind its lock.

use super::{
    Held, MemorySettings,
    finished::Finished,
    hashed::IdHasher,
    ids::Ids,
    queue::{Queue, Signal},
    receivers::Receivers,
    spent::Spent,
    tally::Tally,
    topic::Topic,
    waiting::Waiting,
};
use dwell_core::{Address, Error, ErrorKind, Message, Result, State as MessageState, Text, Timestamp, wire};
use std::{collections::BTreeMap, sync::Arc};

/// Index of a topic. Topics are never removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct TopicAt(pub(super) usize);

/// Index of a subscription. Subscriptions are never removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueAt(pub(super) usize);

/// An existing destination.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// All subscriptions that exist when the message is due.
    Topic(TopicAt),
    /// One subscription.
    Queue(TopicAt, QueueAt),
}

impl Target {
    pub(super) fn topic(self) -> TopicAt {
        match self {
            Self::Topic(topic) | Self::Queue(topic, _) => topic,
        }
    }

    pub(super) fn queue(self) -> Option<QueueAt> {
        match self {
            Self::Topic(_) => None,
            Self::Queue(_, queue) => Some(queue),
        }
    }
}

pub(super) struct State {
    pub(super) settings: MemorySettings,
    /// Prefix of consumer names in records.
    pub(super) instance: Text,
    pub(super) is_closed: bool,
    /// Number of processed messages since a waiting thread got the lock.
    pub(super) done: usize,
    pub(super) topics: Vec<Topic>,
    pub(super) names: BTreeMap<Text, TopicAt>,
    pub(super) queues: Vec<Queue>,
    pub(super) hasher: IdHasher,
    pub(super) ids: Ids,
    /// Dead letters, by their origin.
    pub(super) dead: Tally,
    pub(super) finished: Finished,
    next: u64,
    signals: Vec<QueueAt>,
    /// Topics that have dropped a message for the first time.
    pub(super) warnings: Vec<Text>,
    /// Handled messages, for senders to drop.
    pub(super) spent: Spent,
    /// Buffer for due messages, reused by each promotion.
    pub(super) due: Vec<(Timestamp, Waiting)>,
}

/// Actions after the lock is released.
#[must_use]
#[derive(Default)]
pub(super) struct After {
    /// The first signal. Usually there is only one, which then needs no list.
    signal: Option<(Signal, Arc<Receivers>)>,
    more_signals: Vec<(Signal, Arc<Receivers>)>,
    warnings: Vec<Text>,
}

impl After {
    pub(super) fn run(self) {
        for (signal, receivers) in self.signal.into_iter().chain(self.more_signals) {
            match signal {
                Signal::Nobody => {}
                Signal::One => receivers.tell_one(),
                Signal::All => receivers.tell_all(),
            }
        }
        for topic in self.warnings {
            tracing::warn!(
                %topic,
                "message discarded because its topic has no subscription; logged once per topic"
            );
        }
    }
}

impl State {
    pub(super) fn new(settings: MemorySettings, instance: Text) -> Self {
        Self {
            settings,
            instance,
            is_closed: false,
            done: 0,
            topics: Vec::new(),
            names: BTreeMap::new(),
            queues: Vec::new(),
            hasher: IdHasher::default(),
            ids: Ids::new(settings.ids),
            dead: Tally::default(),
            finished: Finished::new(settings.keep_done, settings.keep_jobs),
            next: 0,
            signals: Vec::new(),
            warnings: Vec::new(),
            spent: Spent::default(),
            due: Vec::new(),
        }
    }

    /// Returns the numbers of stored messages.
    pub(super) fn held_now(&self) -> Held {
        let queues = || self.queues.iter();
        Held {
            waiting: self.topics.iter().map(|topic| topic.waiting.len()).sum(),
            ready: queues().map(Queue::ready).sum(),
            leased: queues().map(|queue| queue.leases.len()).sum(),
        }
    }

    /// Returns the whole state and replaces it by a closed one.
    pub(super) fn close(&mut self) -> Self {
        let closed = Self { is_closed: true, ..Self::new(self.settings, self.instance.clone()) };
        std::mem::replace(self, closed)
    }

    /// Wakes all receivers.
    pub(super) fn wake_all(&self) {
        self.queues.iter().for_each(|queue| queue.receivers.tell_all());
    }

    /// Returns a unique number, for a serial, a fence or a consumer.
    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn topic(&self, name: &str) -> Result<TopicAt> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "there is no topic `{name}` in this memory transport: add a handler for it, or set `on_missing = \"create\"`"
                ),
            )
        })
    }

    /// Returns the subscription with this name. If the topic keeps messages without a subscription,
    /// the one with the topic's name is created on first use. After its adoption, the name refers
    /// to the adopter.
    pub(super) fn queue(&mut self, topic: TopicAt, name: &str) -> Result<QueueAt> {
        let of = &self.topics[topic.0];
        if let Some(queue) = of.names.get(name) {
            return Ok(*queue);
        }
        if of.keeps(name) {
            return Ok(self.kept(topic));
        }
        if let Some(queue) = of.kept.filter(|_| *of.name == *name) {
            return Ok(self.adopter(queue));
        }
        Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "there is no subscription `{name}` of the topic `{}`: add a handler for it, or set `on_missing = \"create\"`",
                of.name
            ),
        ))
    }

    /// Returns the queue of messages without a subscription.
    pub(super) fn kept(&mut self, topic: TopicAt) -> QueueAt {
        let of = &mut self.topics[topic.0];
        *of.kept.get_or_insert_with(|| {
            self.queues.push(Queue::new(topic, of.name.clone(), None));
            QueueAt(self.queues.len() - 1)
        })
    }

    /// Returns the adopter of this queue, or the queue itself.
    pub(super) fn adopter(&self, queue: QueueAt) -> QueueAt {
        self.queues[queue.0].adopted_by.unwrap_or(queue)
    }

    pub(super) fn target(&mut self, to: &Address) -> Result<Target> {
        let topic = self.topic(to.topic_name())?;
        Ok(match to.subscription_name() {
            None => Target::Topic(topic),
            Some(name) => Target::Queue(topic, self.queue(topic, name)?),
        })
    }

    /// Iterates over all queues of a topic.
    pub(super) fn queues_of(&self, topic: TopicAt) -> impl Iterator<Item = QueueAt> + use<'_> {
        let of = &self.topics[topic.0];
        of.subscribed.iter().copied().chain(of.kept)
    }

    /// Wakes receivers of this queue after the lock is released.
    pub(super) fn signal(&mut self, at: QueueAt, signal: Signal) {
        let queue = &mut self.queues[at.0];
        if !queue.receivers.any() {
            return;
        }
        if queue.signal == Signal::Nobody {
            self.signals.push(at);
        }
        queue.signal = queue.signal.max(signal);
    }

    /// Wakes all receivers of this topic after the lock is released.
    pub(super) fn signal_topic(&mut self, topic: TopicAt) {
        let queues: Vec<_> = self.queues_of(topic).collect();
        queues.into_iter().for_each(|queue| self.signal(queue, Signal::All));
    }

    /// Returns the actions for after the lock is released.
    pub(super) fn after(&mut self) -> After {
        if self.signals.is_empty() && self.warnings.is_empty() {
            return After::default();
        }
        let queues = &mut self.queues;
        let mut signals = self.signals.drain(..).map(|at| {
            let queue = &mut queues[at.0];
            (std::mem::replace(&mut queue.signal, Signal::Nobody), queue.receivers.clone())
        });
        After {
            signal: signals.next(),
            more_signals: signals.collect(),
            warnings: std::mem::take(&mut self.warnings),
        }
    }

    /// Returns topic and subscription of a record: those of its queue, or for a dead letter those
    /// of its origin.
    pub(super) fn home(
        &self,
        topic: TopicAt,
        queue: Option<QueueAt>,
        message: &Message,
    ) -> (Text, Option<Text>) {
        let of = &self.topics[topic.0];
        let header = |name| message.headers.get_text(name).map(Text::from);
        match header(wire::ORIGINAL_TOPIC).filter(|_| of.is_dead) {
            Some(original) => (original, header(wire::SUBSCRIPTION)),
            None => (of.name.clone(), queue.map(|queue| self.queues[queue.0].name.clone())),
        }
    }

    /// Counts a dead letter that was added to a queue, or to a topic as a pending publish.
    pub(super) fn entered(&mut self, topic: TopicAt, queue: Option<QueueAt>, message: &Message) {
        if self.topics[topic.0].is_dead {
            let (topic, subscription) = self.home(topic, queue, message);
            self.dead.add(topic, subscription, MessageState::Dead);
        }
    }

    /// Counts a dead letter that was removed.
    pub(super) fn left(&mut self, topic: TopicAt, queue: Option<QueueAt>, message: &Message) {
        if self.topics[topic.0].is_dead {
            let (topic, subscription) = self.home(topic, queue, message);
            self.dead.remove(topic, subscription, MessageState::Dead);
        }
    }
}
