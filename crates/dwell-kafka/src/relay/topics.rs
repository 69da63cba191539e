//! The delay topics: made where they are missing, and looked at before anything relies on them.

use super::RelaySettings;
use crate::{
    cluster::{Cluster, NewOne},
    provision::not_found,
    settings::{HEADER_ROOM, KafkaSettings},
};
use dwell_core::{Error, ErrorKind, OnMissing, Result, Text, format_duration};
use rdkafka::admin::ConfigResource;
use std::time::Duration;

/// See [`largest`].
const PARKED: usize = 64 << 20;

/// A delay topic: its name, and how long its records wait in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) topic: Text,
    /// `None` is the last stretch, where each record has a time of its own.
    pub(super) wait: Option<Duration>,
}

/// All of them, from the shortest to the longest.
pub(super) fn levels(settings: &RelaySettings) -> Vec<Level> {
    let due = Level { topic: settings.due_topic().into(), wait: None };
    let levels = settings.ladder.levels().iter();
    let levels = levels.map(|level| Level { topic: settings.level_topic(*level).into(), wait: Some(*level) });
    std::iter::once(due).chain(levels).collect()
}

/// Sees to it that they are there.
pub(crate) async fn provision(cluster: &Cluster, on_missing: OnMissing) -> Result<()> {
    if on_missing == OnMissing::Assume {
        return Ok(());
    }
    let mut missing = vec![];
    for topic in wanted(cluster) {
        if cluster.partitions(&topic.name).await?.is_none() {
            missing.push(topic);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    if on_missing == OnMissing::Validate {
        let names: Vec<_> = missing.iter().map(|topic| format!("delay topic `{}`", topic.name)).collect();
        return Err(not_found(&names.join(", ")));
    }
    cluster.create(&missing).await.map(drop)
}

/// Sees to it that they are there and that no record can be lost or come early in them.
pub(super) async fn check(cluster: &Cluster) -> Result<()> {
    provision(cluster, OnMissing::Create).await?;
    let settings = &cluster.settings().relay;
    let levels = levels(settings);
    let names: Vec<_> = levels.iter().map(|level| &*level.topic).collect();
    let described = cluster.describe(&names).await?;
    let problems: Vec<_> = levels
        .iter()
        .zip(&described)
        .flat_map(|(level, resource)| problems(level, settings, |name| value(resource, name)))
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!("delay topics of Kafka cannot work: {}", problems.join("; ")),
    ))
}

fn wanted(cluster: &Cluster) -> Vec<NewOne> {
    let (settings, partitions) = (&cluster.settings().relay, cluster.settings().partitions);
    let delay = levels(settings).into_iter().map(|level| {
        let keep = kept(&level, settings).as_millis().to_string();
        let set = vec![
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", keep),
        ];
        NewOne { name: Text::from(level.topic), partitions, settings: set }
    });
    let parked = NewOne {
        name: settings.parking_topic().into(),
        partitions: 1,
        settings: vec![
            ("retention.ms", "-1".to_owned()),
            ("max.message.bytes", largest(cluster.settings()).to_string()),
        ],
    };
    delay.chain([parked]).collect()
}

/// The largest record that can be parked: larger than any that can come, by the headers that say why it is parked. What came in
/// a compressed batch may be many times as large as its topic allows.
pub(super) fn largest(settings: &KafkaSettings) -> usize {
    (settings.max_record + HEADER_ROOM).max(PARKED)
}

/// How long records must be kept: while they wait, and for as long as all relays may be away.
fn kept(level: &Level, settings: &RelaySettings) -> Duration {
    level.wait.unwrap_or_else(|| settings.ladder.levels()[0]).saturating_add(settings.outage)
}

fn value(resource: &ConfigResource, name: &str) -> Option<String> {
    resource.get(name).and_then(|entry| entry.value.clone())
}

/// What is wrong with the settings of a delay topic.
fn problems(level: &Level, settings: &RelaySettings, value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let topic = &level.topic;
    let mut problems = vec![];
    let mut expect = |name: &str, wanted: &str, why: &str| {
        let found = value(name).unwrap_or_default();
        if found != wanted {
            problems.push(format!("`{topic}` has `{name}={found}` and needs `{wanted}`: {why}"));
        }
    };
    expect("message.timestamp.type", "LogAppendTime", "a record waits from the moment that it was appended");
    expect("cleanup.policy", "delete", "compaction drops all but the last record of a key");
    expect("retention.bytes", "-1", "a full topic drops records that still wait");
    let needed = kept(level, settings);
    let keeps = value("retention.ms").and_then(|text| text.parse::<i64>().ok());
    let enough = keeps.is_some_and(|keeps| keeps == -1 || i128::from(keeps) >= needed.as_millis() as i128);
    if !enough {
        problems.push(format!(
            "`{topic}` has `retention.ms={}` and needs at least {} ({}: its level, and `outage`)",
            keeps.unwrap_or_default(),
            needed.as_millis(),
            format_duration(needed)
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn found(set: &[(&str, &str)]) -> Vec<String> {
        let level = Level { topic: "delay-10s".into(), wait: Some(Duration::from_secs(10)) };
        let mut values = BTreeMap::from([
            ("message.timestamp.type", "LogAppendTime"),
            ("cleanup.policy", "delete"),
            ("retention.bytes", "-1"),
            ("retention.ms", "604810000"),
        ]);
        values.extend(set.iter().copied());
        problems(&level, &RelaySettings::default(), |name| values.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn settings_under_which_a_record_could_be_lost_or_early_are_refused_by_name() {
        assert_eq!(found(&[]), Vec::<String>::new());
        assert_eq!(found(&[("retention.ms", "-1")]), Vec::<String>::new());
        for (name, value) in [
            ("message.timestamp.type", "CreateTime"),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("retention.bytes", "1000000"),
            ("retention.ms", "604809999"),
        ] {
            let problems = found(&[(name, value)]);
            assert!(problems.len() == 1 && problems[0].contains(name), "{problems:?}");
        }
    }
}
