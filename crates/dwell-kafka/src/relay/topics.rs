//! The delay topics: creates missing ones, and checks their settings before anything relies on
//! them.

use super::{Ladder, RelaySettings};
use crate::{
    cluster::{Cluster, NewOne},
    kept::{self, value},
    settings::{HEADER_ROOM, KafkaSettings},
};
use dwell_core::{Error, ErrorKind, Result, Text, format_duration};
use std::time::Duration;

/// Setting with the size of the largest batch that a topic accepts.
const SIZE: &str = "max.message.bytes";
/// Minimum of [`largest`].
const PARKED: usize = 64 << 20;

/// How long brokers may disagree about which topics exist.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// A delay topic: its name, and how long its records wait in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) topic: Text,
    /// `None` for the last stretch, where each record has its own due time.
    pub(super) wait: Option<Duration>,
}

/// Returns all delay topics, from the shortest to the longest.
pub(super) fn levels(settings: &RelaySettings) -> Vec<Level> {
    let due = Level { topic: settings.due_topic().into(), wait: None };
    let levels = settings.ladder.levels().iter();
    let levels = levels.map(|level| Level { topic: settings.level_topic(*level).into(), wait: Some(*level) });
    std::iter::once(due).chain(levels).collect()
}

/// Returns the delay topics of the prefix that are not in the ladder, given the names of all
/// topics.
pub(super) fn outside_ladder(settings: &RelaySettings, names: &[String]) -> Vec<Level> {
    let level = |topic: &String| {
        let name = topic.strip_prefix(&settings.prefix)?;
        let wait = Ladder::level_named(name).filter(|wait| !settings.ladder.levels().contains(wait))?;
        // `delay-15s` is the level `5s` of the prefix `delay-1`, if that prefix has a relay.
        let digits = name.trim_end_matches(char::is_alphabetic).len();
        let is_of_longer_prefix = (1..digits).any(|end| {
            let due = format!("{}{}due", settings.prefix, &name[..end]);
            names.contains(&due)
        });
        (!is_of_longer_prefix).then(|| Level { topic: Text::from(topic.as_str()), wait: Some(wait) })
    };
    names.iter().filter_map(level).collect()
}

/// Returns the missing delay topics. Fails if an existing one has settings that could lose a
/// record or deliver it early: one such topic stops all relays.
pub(crate) async fn look(cluster: &Cluster) -> Result<Vec<NewOne>> {
    let (clock, wanted) = (cluster.clock(), wanted(cluster));
    let start = clock.elapsed();
    loop {
        let (mut there, mut missing) = (vec![], vec![]);
        for topic in &wanted {
            match cluster.partitions(&topic.name).await? {
                Some(_) => there.push(&*topic.name),
                None => missing.push(topic.clone()),
            }
        }
        match check_settings(cluster, &there).await {
            // A topic in the cache was deleted since, or is not known to all brokers yet.
            Err(error)
                if error.kind() == ErrorKind::Denied && clock.elapsed().saturating_sub(start) < PATIENCE =>
            {
                wanted.iter().for_each(|topic| cluster.forget(&topic.name));
                clock.sleep(STEP).await;
            }
            checked => return checked.map(|()| missing),
        }
    }
}

/// Creates missing delay topics.
pub(crate) async fn make(cluster: &Cluster, missing: &[NewOne]) -> Result<()> {
    let made = cluster.create(missing).await?;
    if missing.iter().all(|topic| made.contains(&topic.name)) {
        return Ok(());
    }
    // A topic that another process has created meanwhile has the settings of that process.
    look(cluster).await.map(drop)
}

/// Ensures that the delay topics exist, and that they neither lose records nor deliver them early.
pub(super) async fn check(cluster: &Cluster) -> Result<()> {
    let missing = look(cluster).await?;
    make(cluster, &missing).await
}

/// Checks that levels keep their records for as long as they wait, and that the parking topic keeps
/// them without a limit.
async fn check_settings(cluster: &Cluster, topics: &[&str]) -> Result<()> {
    if topics.is_empty() {
        return Ok(());
    }
    let settings = &cluster.settings().relay;
    let levels = levels(settings);
    let described = cluster.describe(topics).await?;
    // librdkafka does not report the reason.
    let silent = topics.iter().zip(&described).find(|(_, resource)| resource.entries.is_empty());
    if let Some((topic, _)) = silent {
        let text = format!(
            "the settings of the delay topic `{topic}` cannot be read: allow this user to describe the configuration of \
             topics, or set `on_missing = \"assume\"` if the relay runs elsewhere"
        );
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let problems = topics.iter().zip(&described).flat_map(|(topic, resource)| {
        let value = |name: &str| value(resource, name);
        match levels.iter().find(|level| *level.topic == **topic) {
            Some(level) => problems(level, settings, value),
            None => {
                warn_of_size(topic, largest(cluster.settings()), value(SIZE));
                kept::problems(topic, value)
            }
        }
    });
    let problems: Vec<_> = problems.collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!("delay topics have unsuitable settings: {}", problems.join("; ")),
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
            // The broker's default may differ.
            ("retention.bytes", "-1".to_owned()),
        ];
        NewOne { name: Text::from(level.topic), partitions, settings: set }
    });
    let parked = NewOne {
        name: settings.parking_topic().into(),
        partitions: 1,
        settings: [kept::settings(), vec![(SIZE, largest(cluster.settings()).to_string())]].concat(),
    };
    delay.chain([parked]).collect()
}

/// Returns the size of the largest record that can be parked. It must exceed every delayed record
/// by the headers with the reason. A record from a compressed batch may be many times larger than
/// its topic allows.
pub(super) fn largest(settings: &KafkaSettings) -> usize {
    (settings.max_record + HEADER_ROOM).max(PARKED)
}

/// Warns if a topic accepts less than this. That is not an error: a record that does not fit is not
/// lost, and not every broker can be configured to accept as much.
fn warn_of_size(topic: &str, largest: usize, found: Option<String>) {
    let takes = found.and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    if takes < largest {
        tracing::warn!(
            "`{topic}` has `{SIZE}={takes}` and should have {largest}: a larger record that cannot be forwarded cannot be \
             parked either, and holds back later records"
        );
    }
}

/// Returns how long records must be kept: while they wait, and for as long as all relays may be
/// down.
fn kept(level: &Level, settings: &RelaySettings) -> Duration {
    level.wait.unwrap_or_else(|| settings.ladder.levels()[0]).saturating_add(settings.outage)
}

/// Returns what is wrong with the settings of a delay topic.
fn problems(level: &Level, settings: &RelaySettings, value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let topic = &level.topic;
    let mut problems = vec![];
    let mut expect = |name: &str, wanted: &str, why: &str| {
        let found = value(name).unwrap_or_default();
        if found != wanted {
            problems.push(format!("`{topic}` has `{name}={found}` and needs `{wanted}`: {why}"));
        }
    };
    expect("message.timestamp.type", "LogAppendTime", "the delay of a record starts when it is appended");
    expect("cleanup.policy", "delete", "compaction drops all but the last record of a key");
    expect("retention.bytes", "-1", "a full topic drops pending records");
    let needed = kept(level, settings);
    let keeps = value("retention.ms").and_then(|text| text.parse::<i64>().ok());
    let enough = keeps.is_some_and(|keeps| keeps == -1 || i128::from(keeps) >= needed.as_millis() as i128);
    if !enough {
        problems.push(format!(
            "`{topic}` has `retention.ms={}` and needs at least {} ({}: its level plus `outage`): raise it with \
             `kafka-configs --alter`, or lower `outage`",
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

    #[test]
    fn delay_topics_outside_the_ladder_are_found_by_name() {
        let settings = RelaySettings { ladder: Ladder::parse("1s,2s").unwrap(), ..RelaySettings::default() };
        let names = ["delay-1s", "delay-8s", "delay-2500ms", "delay-due", "delay-parked", "delay-08s"];
        let others = ["delay-1due", "delay-15s", "test-delay-8s", "delay-8s.dlq", "delay-s", "delay-9000ms"];
        let names: Vec<_> = names.into_iter().chain(others).map(str::to_owned).collect();
        let found = outside_ladder(&settings, &names);
        let expected = [("delay-8s", 8_000), ("delay-2500ms", 2_500)];
        let expected = expected
            .map(|(topic, wait)| Level { topic: topic.into(), wait: Some(Duration::from_millis(wait)) });
        assert_eq!(found, expected);
    }

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
    fn settings_that_lose_records_or_deliver_early_are_refused_by_name() {
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
        let what_to_do = "raise it with `kafka-configs --alter`, or lower `outage`";
        assert!(
            found(&[("retention.ms", "1")])[0].ends_with(what_to_do),
            "{:?}",
            found(&[("retention.ms", "1")])
        );
    }
}
