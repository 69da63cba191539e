//! Topics, subscriptions and processes.

use super::{Executor, Options, Target};
use crate::dice::Dice;
use dwell_core::{RetryPolicy, Text};
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use std::time::Duration;

pub(crate) struct TopicPlan {
    pub(crate) name: Text,
    pub(crate) subscriptions: Vec<SubscriptionSettings>,
}

pub(crate) struct ProcessPlan {
    pub(crate) executor: Executor,
    /// Offset of its wall clock from the broker's, in milliseconds.
    pub(crate) skew: i64,
    /// Subscriptions that it consumes.
    pub(crate) subscriptions: Vec<SubscriptionSettings>,
}

pub(super) fn topics(dice: &Dice, target: Target) -> Vec<TopicPlan> {
    (0..dice.size(1, 3))
        .map(|topic| {
            let name: Text = format!("topic{topic}").into();
            let subscriptions = (0..dice.size(1, 3))
                .map(|number| subscription(&dice.fork(&format!("{name}/{number}")), &name, number, target))
                .collect();
            TopicPlan { name, subscriptions }
        })
        .collect()
}

fn subscription(dice: &Dice, topic: &Text, number: usize, target: Target) -> SubscriptionSettings {
    let lease = dice.millis(1_000, 30_000);
    let timeout = dice.millis(1_000, 60_000);
    let counts_deliveries = !matches!(target, Target::Log(_));
    SubscriptionSettings {
        performers: if dice.chance(0.2) { 2 } else { 1 },
        concurrency: dice.size(1, 4),
        batch: *dice.pick(&[1, 2, 5, 10]),
        rate: dice.chance(0.05).then_some(2.0),
        ordered: dice.chance(0.5),
        max_runs: if dice.chance(0.3) {
            MaxRuns::Unlimited
        } else {
            MaxRuns::Limited(dice.between(1, 6) as u32)
        },
        defer_delay: if dice.chance(0.1) { Duration::ZERO } else { dice.millis(1, 10_000) },
        retry: RetryPolicy {
            max_retries: dice.between(0, 4) as u32,
            base_delay: dice.millis(1, 5_000),
            max_delay: dice.millis(5_000, 60_000),
            jitter: *dice.pick(&[0.0, 0.15, 1.0]),
        },
        unacceptable_message_limit: if dice.chance(0.1) { 3 } else { 0 },
        unacceptable_message_window: dice.chance(0.5).then(|| dice.millis(1_000, 60_000)),
        channel_failure_delay: dice.millis(100, 2_000),
        release_delay: if dice.chance(0.3) { Duration::ZERO } else { dice.millis(1, 5_000) },
        handler_timeout: timeout,
        shutdown_timeout: if dice.chance(0.2) { Duration::ZERO } else { dice.millis(1_000, 60_000) },
        lease,
        dead_letter: match dice.below(10) {
            0 => DeadLetter::Discard,
            1 => DeadLetter::Topic("graveyard.dlq".into()),
            _ => DeadLetter::Default,
        },
        invalid: dice.chance(0.3).then(|| format!("{topic}.invalid").into()),
        on_unknown: if dice.chance(0.5) { OnUnknown::Skip } else { OnUnknown::Invalid },
        quarantine_after: if counts_deliveries { *dice.pick(&[None, Some(0), Some(3)]) } else { None },
        ..SubscriptionSettings::new(topic.clone(), format!("s{number}"))
    }
}

/// Draws the processes. Every subscription is consumed by at least one of them.
pub(super) fn processes(dice: &Dice, topics: &[TopicPlan], options: Options) -> Vec<ProcessPlan> {
    let mut processes: Vec<ProcessPlan> = (0..dice.size(1, 3))
        .map(|_| ProcessPlan {
            executor: {
                let drawn = if dice.chance(0.3) { Executor::Inline } else { Executor::Proactor };
                options.executor.unwrap_or(drawn)
            },
            skew: match dice.below(3) {
                0 => dice.millis(1, 3_600_000).as_millis() as i64,
                1 => -(dice.millis(1, 3_600_000).as_millis() as i64),
                _ => 0,
            },
            subscriptions: vec![],
        })
        .collect();
    for settings in topics.iter().flat_map(|topic| &topic.subscriptions) {
        let certain = dice.below(processes.len() as u64) as usize;
        for (number, process) in processes.iter_mut().enumerate() {
            if number == certain || dice.chance(0.5) {
                process.subscriptions.push(settings.clone());
            }
        }
    }
    processes
}
