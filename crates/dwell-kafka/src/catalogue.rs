//! What was declared and Kafka cannot store itself: what happens to messages without a
//! subscription, which subscription a group belongs to, and which subscription has adopted the
//! default subscription of a topic. The catalogue is a compacted topic of one partition; keys and
//! values are plain text:
//!
//! ```text
//! topic orders              →  discard
//! subscription orders.mail  →  orders mail declared
//! adopted jobs              →  worker
//! ```

use crate::{
    cluster::{Cluster, NewOne},
    fault::fault,
    headers::RawHeaders,
    names::group_name,
    outbox::Outbox,
    record::{Outgoing, Record},
};
use dwell_core::{Error, ErrorKind, Result, Text, Unclaimed, wire};
use rdkafka::{Offset, TopicPartitionList, consumer::Consumer as _, error::KafkaError};
use std::{collections::BTreeMap, time::Duration};

/// The topic of the catalogue.
pub(crate) const TOPIC: &str = "dwell.catalogue";

/// How long no record may arrive while the catalogue is read.
const PATIENCE: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(100);

/// The group of one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) topic: Text,
    pub(crate) name: Text,
    /// Whether it was declared. A default subscription only keeps messages without a subscription.
    pub(crate) declared: bool,
}

/// All declarations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalogue {
    topics: BTreeMap<Text, Unclaimed>,
    groups: BTreeMap<Text, Entry>,
    /// By topic, the subscription that has adopted the topic's default subscription.
    adopters: BTreeMap<Text, Text>,
}

/// One declaration, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Topic(Text, Unclaimed),
    Group(Text, Entry),
    NoGroup(Text),
    /// The default subscription of the topic was adopted by this subscription.
    Adopted(Text, Text),
    NotAdopted(Text),
}

impl Catalogue {
    /// Reads the whole catalogue. It is empty if nothing was declared yet.
    pub(crate) async fn read(cluster: &Cluster) -> Result<Self> {
        if cluster.partitions(TOPIC).await?.is_none() {
            return Ok(Self::default());
        }
        let mut catalogue = Self::default();
        read_all(cluster).await?.iter().for_each(|record| catalogue.take_in(record));
        Ok(catalogue)
    }

    /// Adds changes to the catalogue.
    pub(crate) async fn write(cluster: &Cluster, outbox: &Outbox, changes: &[Change]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if cluster.partitions(TOPIC).await?.is_none() {
            let settings = vec![("cleanup.policy", "compact".to_owned())];
            cluster.create(&[NewOne { name: TOPIC.into(), partitions: 1, settings }]).await?;
        }
        let records: Vec<_> = changes.iter().map(Change::record).collect();
        outbox.send(&records).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Returns the declared setting for messages without a subscription, if there is one.
    pub(crate) fn unclaimed(&self, topic: &str) -> Option<Unclaimed> {
        self.topics.get(topic).copied()
    }

    /// Returns whether a topic keeps messages without a subscription.
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        self.unclaimed(topic)
            .map_or(wire::is_dead_letter_topic(topic), |unclaimed| unclaimed == Unclaimed::Keep)
    }

    /// Returns the subscription that a group belongs to.
    pub(crate) fn group(&self, group: &str) -> Option<&Entry> {
        self.groups.get(group)
    }

    /// Returns whether a topic has a default subscription: one of the topic's own name that was not
    /// declared, and only keeps messages without a subscription.
    pub(crate) fn has_default(&self, topic: &str) -> bool {
        self.own(topic).is_some_and(|own| !own.declared)
    }

    /// Returns whether the subscription of the topic's own name was declared.
    pub(crate) fn declares_own(&self, topic: &str) -> bool {
        self.own(topic).is_some_and(|own| own.declared)
    }

    /// Returns the subscription that has adopted the topic's default subscription.
    pub(crate) fn adopter(&self, topic: &str) -> Option<&Text> {
        self.adopters.get(topic)
    }

    /// Returns the subscription because of which a keeping topic has no default subscription: the
    /// one that has adopted it, or another declared one. `None` if the topic has no declared
    /// subscription, or one of its own name.
    pub(crate) fn claimed(&self, topic: &str) -> Option<&Text> {
        if self.declares_own(topic) || !self.keeps(topic) {
            return None;
        }
        let of_topic = |entry: &&Entry| entry.declared && *entry.topic == *topic;
        let declared = || self.groups.values().filter(of_topic).map(|entry| &entry.name);
        declared().find(|name| self.adopter(topic) == Some(*name)).or_else(|| declared().next())
    }

    /// Returns the subscription of the topic's own name.
    fn own(&self, topic: &str) -> Option<&Entry> {
        self.group(&group_name(topic, topic)).filter(|entry| *entry.topic == *topic)
    }

    /// Returns the catalogue with these changes applied.
    pub(crate) fn with(mut self, changes: &[Change]) -> Self {
        changes.iter().for_each(|change| self.apply(change.clone()));
        self
    }

    fn take_in(&mut self, record: &Record) {
        let text = |bytes: &Option<bytes::Bytes>| {
            bytes.as_deref().map(|text| String::from_utf8_lossy(text).into_owned())
        };
        let (Some(key), value) = (text(&record.key), text(&record.body)) else { return };
        match Change::parse(&key, value.as_deref()) {
            Some(change) => self.apply(change),
            // A later version may have written it.
            None => tracing::warn!(key, "unknown entry in `{TOPIC}`; ignoring it"),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Topic(topic, unclaimed) => drop(self.topics.insert(topic, unclaimed)),
            Change::Group(group, entry) => drop(self.groups.insert(group, entry)),
            Change::NoGroup(group) => drop(self.groups.remove(&group)),
            Change::Adopted(topic, by) => drop(self.adopters.insert(topic, by)),
            Change::NotAdopted(topic) => drop(self.adopters.remove(&topic)),
        }
    }
}

impl Change {
    fn record(&self) -> Outgoing {
        let (key, value) = match self {
            Self::Topic(topic, unclaimed) => {
                let word = if *unclaimed == Unclaimed::Keep { "keep" } else { "discard" };
                (format!("topic {topic}"), Some(word.to_owned()))
            }
            Self::Group(group, Entry { topic, name, declared }) => {
                let word = if *declared { "declared" } else { "default" };
                (format!("subscription {group}"), Some(format!("{topic} {name} {word}")))
            }
            Self::NoGroup(group) => (format!("subscription {group}"), None),
            Self::Adopted(topic, by) => (format!("adopted {topic}"), Some(by.to_string())),
            Self::NotAdopted(topic) => (format!("adopted {topic}"), None),
        };
        Outgoing {
            topic: TOPIC.into(),
            key: Some(key.into()),
            headers: RawHeaders::default(),
            body: value.map(Into::into),
        }
    }

    fn parse(key: &str, value: Option<&str>) -> Option<Self> {
        let (what, name) = key.split_once(' ')?;
        match (what, value) {
            ("topic", Some("keep")) => Some(Self::Topic(name.into(), Unclaimed::Keep)),
            ("topic", Some("discard")) => Some(Self::Topic(name.into(), Unclaimed::Discard)),
            ("subscription", None) => Some(Self::NoGroup(name.into())),
            ("adopted", Some(by)) => Some(Self::Adopted(name.into(), by.into())),
            ("adopted", None) => Some(Self::NotAdopted(name.into())),
            ("subscription", Some(value)) => {
                let [topic, of, word] = value.split(' ').collect::<Vec<_>>().try_into().ok()?;
                let declared = word == "declared";
                Some(Self::Group(name.into(), Entry { topic: topic.into(), name: of.into(), declared }))
            }
            _ => None,
        }
    }
}

/// Reads all records of the catalogue topic.
async fn read_all(cluster: &Cluster) -> Result<Vec<Record>> {
    let guest = cluster.member(TOPIC)?;
    let (reader, clock) = (guest.share(), cluster.clock());
    let read = tokio::task::spawn_blocking(move || {
        let mut place = TopicPartitionList::new();
        let placed =
            place.add_partition_offset(TOPIC, 0, Offset::Beginning).and_then(|()| reader.assign(&place));
        placed.map_err(|error| fault(&format!("read the topic `{TOPIC}`"), error))?;
        let (mut came, mut records) = (clock.elapsed(), vec![]);
        while clock.elapsed().saturating_sub(came) < PATIENCE {
            match reader.poll(STEP) {
                Some(Ok(message)) => {
                    came = clock.elapsed();
                    records.push(Record::read(&message));
                }
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(records),
                Some(Err(error)) => tracing::debug!(%error, "reading `{TOPIC}` failed; retrying"),
                None => {}
            }
        }
        let text = format!(
            "Kafka cannot read the topic `{TOPIC}`: no record and no end of the topic within {PATIENCE:?}"
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    });
    read.await.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the thread that reads from Kafka ended").with_source(error)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_back_as_written_and_unknown_entries_are_ignored() {
        let mail = Entry { topic: "orders".into(), name: "mail".into(), declared: true };
        let changes = [
            Change::Topic("orders".into(), Unclaimed::Discard),
            Change::Topic("jobs".into(), Unclaimed::Keep),
            Change::Group("orders.mail".into(), mail.clone()),
            Change::Group(
                "jobs.jobs".into(),
                Entry { topic: "jobs".into(), name: "jobs".into(), declared: false },
            ),
            Change::NoGroup("jobs.jobs".into()),
            Change::Adopted("jobs".into(), "worker".into()),
            Change::Adopted("bills".into(), "worker".into()),
            Change::NotAdopted("bills".into()),
        ];
        for change in &changes {
            let Outgoing { key, body, .. } = change.record();
            let text =
                |bytes: Option<bytes::Bytes>| bytes.map(|text| String::from_utf8(text.to_vec()).unwrap());
            assert_eq!(Change::parse(&text(key).unwrap(), text(body).as_deref()).as_ref(), Some(change));
        }
        let catalogue = Catalogue::default().with(&changes);
        assert_eq!((catalogue.group("orders.mail"), catalogue.group("jobs.jobs")), (Some(&mail), None));
        assert!(catalogue.keeps("jobs") && catalogue.keeps("orders.dlq") && !catalogue.keeps("orders"));
        assert_eq!(catalogue.adopter("jobs").map(|by| &**by), Some("worker"));
        assert_eq!(catalogue.adopter("bills"), None);
        assert_eq!(Change::parse("topic", None), None);
        assert_eq!(Change::parse("topic x", Some("perhaps")), None);
    }

    #[test]
    fn a_declared_subscription_claims_the_default_subscription_of_a_keeping_topic() {
        let group = |topic: &str, name: &str, declared| {
            let entry = Entry { topic: topic.into(), name: name.into(), declared };
            Change::Group(group_name(topic, name).into(), entry)
        };
        let claimed = |changes: &[Change]| {
            let keeps = Change::Topic("jobs".into(), Unclaimed::Keep);
            let catalogue = Catalogue::default().with(&[keeps]).with(changes);
            (catalogue.has_default("jobs"), catalogue.claimed("jobs").map(ToString::to_string))
        };
        let default = group("jobs", "jobs", false);
        assert_eq!(claimed(&[]), (false, None));
        let events = Catalogue::default().with(&[group("orders", "mail", true)]);
        assert_eq!(events.claimed("orders"), None, "a topic that discards has no default subscription");
        assert_eq!(claimed(std::slice::from_ref(&default)), (true, None));
        assert_eq!(claimed(&[default, group("jobs", "worker", true)]), (true, Some("worker".into())));
        let both = [group("jobs", "audit", true), group("jobs", "worker", true)];
        assert_eq!(claimed(&both), (false, Some("audit".into())));
        let adopted = [&both[..], &[Change::Adopted("jobs".into(), "worker".into())]].concat();
        assert_eq!(claimed(&adopted), (false, Some("worker".into())));
        assert_eq!(claimed(&[&adopted[..], &[group("jobs", "jobs", true)]].concat()), (false, None));
        // The same group name for another topic.
        assert_eq!(claimed(&[group("jobs.jobs", "x", true), group("job", "s.jobs", true)]), (false, None));
    }
}
