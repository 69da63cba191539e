//! What was declared, and what Kafka itself has no place for: what becomes of messages that nobody subscribed to, and which
//! subscription a group belongs to. It is a compacted topic of one partition; keys and values are plain text:
//!
//! ```text
//! topic orders              →  discard
//! subscription orders.mail  →  orders mail declared
//! ```

use crate::{
    cluster::{Cluster, NewOne},
    fault::fault,
    headers::RawHeaders,
    outbox::Outbox,
    record::{Outgoing, Record},
};
use dwell_core::{Error, ErrorKind, Result, Text, Unclaimed, wire};
use rdkafka::{Offset, TopicPartitionList, consumer::Consumer as _, error::KafkaError};
use std::{collections::BTreeMap, time::Duration};

/// Where it lies.
pub(crate) const TOPIC: &str = "dwell.catalogue";

/// How long reading it may take.
const PATIENCE: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(100);

/// The group of one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) topic: Text,
    pub(crate) name: Text,
    /// Not only there to keep what nobody subscribed to.
    pub(crate) declared: bool,
}

/// All that was declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Catalogue {
    topics: BTreeMap<Text, Unclaimed>,
    groups: BTreeMap<Text, Entry>,
}

/// One thing that is declared, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Topic(Text, Unclaimed),
    Group(Text, Entry),
    NoGroup(Text),
}

impl Catalogue {
    /// Reads all of it; empty if nobody has declared anything yet.
    pub(crate) async fn read(cluster: &Cluster) -> Result<Self> {
        if cluster.partitions(TOPIC).await?.is_none() {
            return Ok(Self::default());
        }
        let records = read_all(cluster, TOPIC, 0, Offset::Beginning).await?;
        let mut catalogue = Self::default();
        for record in &records {
            catalogue.take_in(record);
        }
        Ok(catalogue)
    }

    /// Adds to it.
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

    /// What was said about messages that nobody subscribed to, if anything was.
    pub(crate) fn unclaimed(&self, topic: &str) -> Option<Unclaimed> {
        self.topics.get(topic).copied()
    }

    /// Whether a topic keeps what nobody subscribed to.
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        self.unclaimed(topic)
            .map_or(wire::is_dead_letter_topic(topic), |unclaimed| unclaimed == Unclaimed::Keep)
    }

    /// The subscription that a group belongs to.
    pub(crate) fn group(&self, group: &str) -> Option<&Entry> {
        self.groups.get(group)
    }

    /// As it will be with these.
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
            // Of a later version, perhaps.
            None => tracing::warn!(key, "an entry of `{TOPIC}` cannot be read and is left alone"),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Topic(topic, unclaimed) => drop(self.topics.insert(topic, unclaimed)),
            Change::Group(group, entry) => drop(self.groups.insert(group, entry)),
            Change::NoGroup(group) => drop(self.groups.remove(&group)),
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
            ("subscription", Some(value)) => {
                let [topic, of, word] = value.split(' ').collect::<Vec<_>>().try_into().ok()?;
                let declared = word == "declared";
                Some(Self::Group(name.into(), Entry { topic: topic.into(), name: of.into(), declared }))
            }
            _ => None,
        }
    }
}

/// The records of a partition, from an offset to its end as it is now.
pub(crate) async fn read_all(
    cluster: &Cluster,
    topic: &str,
    partition: i32,
    from: Offset,
) -> Result<Vec<Record>> {
    let guest = cluster.member(TOPIC)?;
    let (reader, clock) = (guest.share(), cluster.clock());
    let (name, what) = (topic.to_owned(), format!("read the topic `{topic}`"));
    let read = tokio::task::spawn_blocking(move || {
        let mut place = TopicPartitionList::new();
        let placed = place.add_partition_offset(&name, partition, from).and_then(|()| reader.assign(&place));
        placed.map_err(|error| fault(&what, error))?;
        let (start, mut records) = (clock.elapsed(), vec![]);
        while clock.elapsed().saturating_sub(start) < PATIENCE {
            match reader.poll(STEP) {
                Some(Ok(message)) => records.push(Record::read(&message)),
                Some(Err(KafkaError::PartitionEOF(_))) => return Ok(records),
                Some(Err(error)) => tracing::debug!(%error, topic = name, "reading is tried again"),
                None => {}
            }
        }
        let text = format!("Kafka cannot {what}: no end of it came in {PATIENCE:?}");
        Err(Error::new(ErrorKind::Unavailable, text))
    });
    read.await
        .map_err(|error| Error::new(ErrorKind::Unavailable, "reading from Kafka ended").with_source(error))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_what_is_odd_is_left_alone() {
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
        assert_eq!(Change::parse("topic", None), None);
        assert_eq!(Change::parse("topic x", Some("perhaps")), None);
    }
}
