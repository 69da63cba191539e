//! Plan of one world, drawn from the seed before it starts.

mod timeline;
mod topology;

pub(crate) use timeline::{Happening, Planned, Sending};
pub(crate) use topology::{ProcessPlan, TopicPlan};

use crate::{dice::Dice, faulty::Rates};
use dwell_core::{Address, MessageId, Text};
use dwell_engine::{SubscriptionSettings, planted::Bug};
use std::{collections::BTreeSet, time::Duration};

/// Kind of broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Memory with native delays and timed leases.
    Memory,
    /// Memory with another memory as its store: timed leases, and forwarded messages.
    Stored,
    /// A log with this number of partitions and memory as its store: only append and ack.
    Log(usize),
}

/// The way handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// Async handlers, which may take time.
    Proactor,
    /// Blocking handlers, run inline.
    Inline,
}

/// Choices that are not left to the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The way handlers run in all processes.
    pub executor: Option<Executor>,
    /// Whether the broker is a log.
    pub log: Option<bool>,
    /// Bug of the engine to enable.
    pub bug: Option<Bug>,
}

/// One world.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) dice: Dice,
    pub(crate) target: Target,
    pub(crate) topics: Vec<TopicPlan>,
    pub(crate) processes: Vec<ProcessPlan>,
    pub(crate) rates: Rates,
    /// Time after which no more faults are injected.
    pub(crate) horizon: Duration,
    pub(crate) timeline: Vec<(Duration, Happening)>,
    /// Weights of the outcomes of a run.
    pub(crate) mood: Mood,
    pub(crate) shortest_lease: Duration,
    pub(crate) longest_lease: Duration,
}

/// Weights of handlers' outcomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mood {
    pub(crate) handled: u32,
    pub(crate) deferred: u32,
    pub(crate) failed: u32,
    pub(crate) panicked: u32,
    pub(crate) released: u32,
    pub(crate) rejected: u32,
    pub(crate) invalid: u32,
    pub(crate) unknown: u32,
    pub(crate) misconfigured: u32,
    pub(crate) hung: u32,
    /// Share of runs that take time, out of 100.
    pub(crate) slow: u32,
}

impl Plan {
    pub(crate) fn draw(seed: u64, options: Options) -> Self {
        let dice = Dice::new(seed);
        let kind = dice.fork("target");
        let target = match (options.log, kind.below(5)) {
            (Some(true), _) | (None, 0 | 1) => Target::Log(dice.fork("partitions").size(1, 3)),
            (_, 4) => Target::Stored,
            _ => Target::Memory,
        };
        let topics = topology::topics(&dice.fork("topics"), target);
        let processes = topology::processes(&dice.fork("processes"), &topics, options);
        let level = *dice.fork("level").pick(&[0.0, 0.0, 0.003, 0.01, 0.03, 0.1]);
        let window = dice.fork("window").millis(10_000, 7_200_000);
        let timeline =
            timeline::draw(&dice.fork("timeline"), target, &topics, &processes, window, level > 0.0);
        let leases = || topics.iter().flat_map(|topic| &topic.subscriptions).map(|settings| settings.lease);
        Self {
            seed,
            rates: rates(&dice.fork("rates"), level),
            mood: mood(&dice.fork("mood")),
            horizon: window + Duration::from_secs(600),
            shortest_lease: leases().min().unwrap_or_default(),
            longest_lease: leases().max().unwrap_or_default(),
            dice,
            target,
            topics,
            processes,
            timeline,
        }
    }

    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &SubscriptionSettings> {
        self.topics.iter().flat_map(|topic| &topic.subscriptions)
    }

    pub(crate) fn settings(&self, of: &Address) -> Option<&SubscriptionSettings> {
        let name = of.subscription_name()?;
        self.subscriptions().find(|settings| settings.topic == *of.topic_name() && settings.name == *name)
    }

    /// Returns the subscriptions that a message to this address reaches, or the address itself if
    /// there are none.
    pub(crate) fn reached(&self, to: &Address) -> Vec<Address> {
        match to {
            Address::Subscription { .. } => vec![to.clone()],
            Address::Topic(topic) => {
                let of_topic = self.subscriptions().filter(|settings| settings.topic == *topic);
                let all: Vec<_> = of_topic.map(|settings| settings.subscription().address()).collect();
                if all.is_empty() { vec![to.clone()] } else { all }
            }
        }
    }

    /// Returns whether only one content is ever sent under this id.
    pub(crate) fn has_one_content(&self, id: &MessageId) -> bool {
        let generations = self.timeline.iter().filter_map(|(_, happening)| match happening {
            Happening::Request(_, Planned::Send(batch, _)) => Some(batch),
            _ => None,
        });
        let of_id = generations.flatten().filter(|sending| sending.subject.id == *id);
        of_id.map(|sending| sending.subject.generation).collect::<BTreeSet<_>>().len() == 1
    }

    /// Returns the topics of dead-letter and invalid channels.
    pub(crate) fn dead_letter_topics(&self) -> Vec<Text> {
        let mut topics: Vec<Text> = vec![];
        for settings in self.subscriptions() {
            for channel in settings.subscription().channels() {
                if !topics.contains(channel.topic_name()) {
                    topics.push(channel.topic_name().clone());
                }
            }
        }
        topics
    }

    /// Returns one line for each drawn item.
    pub(crate) fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("seed {}: {:?}, faults {:?}", self.seed, self.target, self.rates)];
        lines.extend(self.subscriptions().map(|settings| {
            format!(
                "{}/{}: performers {}, concurrency {}, batch {}, lease {:?}, timeout {:?}, max_runs {:?}, retries {}, \
                 dead letters {:?}, invalid {:?}, quarantine {:?}",
                settings.topic,
                settings.name,
                settings.performers,
                settings.concurrency,
                settings.batch,
                settings.lease,
                settings.handler_timeout,
                settings.max_runs,
                settings.retry.max_retries,
                settings.dead_letter,
                settings.invalid,
                settings.quarantine_after,
            )
        }));
        lines.extend(self.processes.iter().enumerate().map(|(number, process)| {
            format!("p{number}: {:?}, wall clock off by {} ms", process.executor, process.skew)
        }));
        lines
    }
}

fn rates(dice: &Dice, level: f64) -> Rates {
    let rate = |most: f64| if dice.chance(0.3) { 0.0 } else { level * most };
    Rates {
        refused: rate(3.0),
        partly_refused: rate(5.0),
        unconfirmed: rate(2.0),
        short_answer: rate(2.0),
        lost_request: rate(1.0),
        lost_delivery: rate(2.0),
        hung: rate(0.15),
        slow: rate(1.0),
        detached: rate(1.0),
        crash: rate(0.3),
        latency: if dice.chance(0.5) { 0.2 } else { 0.0 },
    }
}

fn mood(dice: &Dice) -> Mood {
    let trouble = *dice.pick(&[0, 1, 1, 3]);
    let weight = |most: u64| trouble * dice.between(0, most) as u32;
    Mood {
        handled: 10,
        deferred: weight(4),
        failed: weight(4),
        panicked: weight(1),
        released: weight(2),
        rejected: weight(1),
        invalid: weight(1),
        unknown: weight(1),
        misconfigured: if dice.chance(0.2) { weight(1) } else { 0 },
        hung: weight(1),
        slow: *dice.pick(&[0, 10, 50]),
    }
}
