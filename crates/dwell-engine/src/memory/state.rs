//! All that a memory transport holds, behind its one lock.

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

/// Which topic. Topics are never removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct TopicAt(pub(super) usize);

/// Which subscription. Subscriptions are never removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueAt(pub(super) usize);

/// Where a message goes, once it was found to exist.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// To all that are subscribed when it is due.
    Topic(TopicAt),
    /// To this one alone.
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
    /// The name that records give to whoever holds a message.
    pub(super) instance: Text,
    pub(super) is_closed: bool,
    /// How many messages were dealt with since somebody who had waited for the lock got it.
    pub(super) done: usize,
    pub(super) topics: Vec<Topic>,
    pub(super) names: BTreeMap<Text, TopicAt>,
    pub(super) queues: Vec<Queue>,
    pub(super) hasher: IdHasher,
    pub(super) ids: Ids,
    /// The dead, by where they came from.
    pub(super) dead: Tally,
    pub(super) finished: Finished,
    next: u64,
    signals: Vec<QueueAt>,
    /// Topics that dropped a message for the first time.
    pub(super) warnings: Vec<Text>,
    /// What was handled, for senders to drop.
    pub(super) spent: Spent,
    /// Room for what is due, kept from one promotion to the next.
    pub(super) due: Vec<(Timestamp, Waiting)>,
}

/// What to do once the lock is free.
#[must_use]
#[derive(Default)]
pub(super) struct After {
    /// Most have one signal, and pay for no list.
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
                "a message was discarded, because nobody subscribed to its topic; this is said once per topic"
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

    /// How much is held.
    pub(super) fn held_now(&self) -> Held {
        let queues = || self.queues.iter();
        Held {
            waiting: self.topics.iter().map(|topic| topic.waiting.len()).sum(),
            ready: queues().map(Queue::ready).sum(),
            leased: queues().map(|queue| queue.leases.len()).sum(),
        }
    }

    /// Gives up all that is held, and returns it. Everything after this is `Closed`.
    pub(super) fn close(&mut self) -> Self {
        let closed = Self { is_closed: true, ..Self::new(self.settings, self.instance.clone()) };
        std::mem::replace(self, closed)
    }

    /// Wakes every receiver, to look again.
    pub(super) fn wake_all(&self) {
        self.queues.iter().for_each(|queue| queue.receivers.tell_all());
    }

    /// A number that was never given before: serial, fence or consumer.
    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn topic(&self, name: &str) -> Result<TopicAt> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "there is no topic `{name}` in this memory transport: handle it here, or set `on_missing = \"create\"`"
                ),
            )
        })
    }

    /// The subscription of this name. That of the topic's own name is made on first use, where the topic keeps what
    /// nobody subscribed to; once it was adopted, its adopter answers to its name.
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
                "there is no subscription `{name}` of the topic `{}`: handle it here, or set `on_missing = \"create\"`",
                of.name
            ),
        ))
    }

    /// The queue of what nobody subscribed to.
    pub(super) fn kept(&mut self, topic: TopicAt) -> QueueAt {
        let of = &mut self.topics[topic.0];
        *of.kept.get_or_insert_with(|| {
            self.queues.push(Queue::new(topic, of.name.clone(), None));
            QueueAt(self.queues.len() - 1)
        })
    }

    /// Who has taken over this queue, if anybody has; else itself.
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

    /// All queues of a topic.
    pub(super) fn queues_of(&self, topic: TopicAt) -> impl Iterator<Item = QueueAt> + use<'_> {
        let of = &self.topics[topic.0];
        of.subscribed.iter().copied().chain(of.kept)
    }

    /// Tells receivers of this queue, once the lock is free.
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

    /// Tells all receivers of this topic, once the lock is free.
    pub(super) fn signal_topic(&mut self, topic: TopicAt) {
        let queues: Vec<_> = self.queues_of(topic).collect();
        queues.into_iter().for_each(|queue| self.signal(queue, Signal::All));
    }

    /// What is to be done once the lock is free.
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

    /// Where a record belongs: to the queue it is in, or, for what is dead, to where it came from.
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

    /// A message came into the custody of a queue, or of a topic as a publish that waits.
    pub(super) fn entered(&mut self, topic: TopicAt, queue: Option<QueueAt>, message: &Message) {
        if self.topics[topic.0].is_dead {
            let (topic, subscription) = self.home(topic, queue, message);
            self.dead.add(topic, subscription, MessageState::Dead);
        }
    }

    /// It left that custody.
    pub(super) fn left(&mut self, topic: TopicAt, queue: Option<QueueAt>, message: &Message) {
        if self.topics[topic.0].is_dead {
            let (topic, subscription) = self.home(topic, queue, message);
            self.dead.remove(topic, subscription, MessageState::Dead);
        }
    }
}
