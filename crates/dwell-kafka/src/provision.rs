//! Making sure that topics, groups and retry topics are there.

use crate::{
    catalogue::{Catalogue, Change, Entry, read_all},
    cluster::{Cluster, Mark, NewOne},
    group::settled_above,
    names::{group_name, retry_topic},
    outbox::Outbox,
    record::Outgoing,
    relay,
};
use dwell_core::{Address, Clock, Error, ErrorKind, OnMissing, Result, Subscription, Text, Topic, wire};
use rdkafka::Offset;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How long to wait for whoever makes the same subscription at this moment.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// What it takes to provision.
#[derive(Clone)]
pub(crate) struct Provisioner {
    pub(crate) cluster: Cluster,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What has to be there.
#[derive(Default)]
struct Wanted {
    topics: Vec<Text>,
    subscriptions: Vec<(Text, Text)>,
}

impl Wanted {
    fn new(topics: &[Topic], subscriptions: &[Subscription]) -> Self {
        let mut wanted = Self::default();
        topics.iter().for_each(|topic| wanted.topic(&topic.name));
        for subscription in subscriptions {
            wanted.address(&subscription.address());
            subscription.channels().for_each(|channel| wanted.address(channel));
        }
        wanted
    }

    fn address(&mut self, address: &Address) {
        self.topic(address.topic_name());
        if let Some(name) = address.subscription_name() {
            self.subscriptions.push((address.topic_name().clone(), name.clone()));
        }
    }

    fn topic(&mut self, topic: &Text) {
        if !self.topics.contains(topic) {
            self.topics.push(topic.clone());
        }
    }
}

impl Provisioner {
    /// Looks at everything before it makes anything, so that a conflict leaves no half of it behind.
    pub(crate) async fn provision(
        &self,
        topics: &[Topic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<()> {
        if on_missing == OnMissing::Assume {
            return Ok(());
        }
        let wanted = Wanted::new(topics, subscriptions);
        let catalogue = Catalogue::read(&self.cluster).await?;
        check_conflicts(&catalogue, topics, &wanted)?;
        let shelves = relay::look(&self.cluster).await?;
        if on_missing == OnMissing::Validate {
            return self.check_missing(&wanted, &shelves).await;
        }
        relay::make(&self.cluster, &shelves).await?;
        let mut new = vec![];
        for topic in &wanted.topics {
            if self.cluster.partitions(topic).await?.is_none() {
                new.push(self.topic(topic.clone()));
            }
        }
        self.cluster.create(&new).await?;
        let said = |topic: &&Topic| catalogue.unclaimed(&topic.name).is_none();
        let changes: Vec<_> = topics
            .iter()
            .filter(said)
            .map(|topic| Change::Topic(topic.name.clone(), topic.unclaimed))
            .collect();
        Catalogue::write(&self.cluster, &self.outbox, &changes).await?;
        let catalogue = catalogue.with(&changes);
        for (topic, name) in &wanted.subscriptions {
            self.subscribe(&catalogue, topic, name, true).await?;
        }
        Ok(())
    }

    /// The subscription under the topic's own name, for who reads what nobody subscribed to. It is made when it is
    /// first read: until then the topic itself keeps everything.
    pub(crate) async fn default_subscription(&self, topic: &Text) -> Result<bool> {
        let catalogue = Catalogue::read(&self.cluster).await?;
        if self.cluster.partitions(topic).await?.is_none() || !catalogue.keeps(topic) {
            return Ok(false);
        }
        self.subscribe(&catalogue, topic, topic, false).await?;
        Ok(true)
    }

    fn topic(&self, name: Text) -> NewOne {
        let settings = self.cluster.settings();
        let retention = match wire::is_dead_letter_topic(&name) {
            true => Some("-1".to_owned()),
            false => settings.retention.map(|time| time.as_millis().to_string()),
        };
        let set = retention.map(|value| ("retention.ms", value)).into_iter().collect();
        NewOne { name, partitions: settings.partitions, settings: set }
    }

    /// Makes the subscription, unless it is there. Whoever makes its retry topic says where it begins, alone: a second
    /// one who said so later would skip what came between. One who takes over from it, and all who are slow, only say so
    /// where nobody has.
    async fn subscribe(
        &self,
        catalogue: &Catalogue,
        topic: &Text,
        name: &Text,
        declared: bool,
    ) -> Result<()> {
        let group: Text = group_name(topic, name).into();
        let entry = Entry { topic: topic.clone(), name: name.clone(), declared };
        match catalogue.group(&group) {
            Some(known) if known.declared || !declared => return Ok(()),
            Some(_) => {
                return Catalogue::write(&self.cluster, &self.outbox, &[Change::Group(group, entry)]).await;
            }
            None => {}
        }
        let retries: Text = retry_topic(&group).into();
        let made = match self.cluster.partitions(&retries).await? {
            Some(_) => false,
            None => !self.cluster.create(&[self.topic(retries.clone())]).await?.is_empty(),
        };
        if !made && self.is_made_by_another(&group).await? {
            return Ok(());
        }
        let mut changes = vec![Change::Group(group.clone(), entry)];
        let adopted = group_name(topic, topic);
        let adopted = catalogue.group(&adopted).filter(|entry| !entry.declared).map(|_| adopted);
        let start = self.start(catalogue, topic, adopted.as_deref()).await?;
        let mut starts = vec![(topic.clone(), start)];
        if made {
            // Nothing can be in it yet. Said here, so that no consumer has to find out when its first retry comes.
            let partitions = self.cluster.partitions(&retries).await?.unwrap_or(0);
            starts.push((retries.clone(), vec![Mark::at(0); partitions]));
        }
        // Where another has said so before, that stands: publishers were told that all is ready, and what came since lies before
        // the end as we have seen it.
        self.cluster.begin(&group, starts).await?;
        if let Some(adopted) = adopted.filter(|adopted| **adopted != *group) {
            self.adopt_retries(&adopted, &retries).await?;
            changes.push(Change::NoGroup(adopted.into()));
        }
        Catalogue::write(&self.cluster, &self.outbox, &changes).await
    }

    /// The retry topic is there and the entry is not: somebody is at it, or has died at it.
    async fn is_made_by_another(&self, group: &str) -> Result<bool> {
        let start = self.clock.elapsed();
        while self.clock.elapsed().saturating_sub(start) < PATIENCE {
            if Catalogue::read(&self.cluster).await?.group(group).is_some() {
                return Ok(true);
            }
            self.clock.sleep(STEP).await;
        }
        Ok(false)
    }

    /// Where a new group begins in each partition of its topic: where the subscription was that it adopts, else at the
    /// first record of a topic that keeps, else behind the last.
    async fn start(&self, catalogue: &Catalogue, topic: &Text, adopted: Option<&str>) -> Result<Vec<Mark>> {
        let partitions = self.cluster.partitions(topic).await?.unwrap_or(0);
        let ends = self.cluster.ends(topic, partitions).await?;
        let committed = match adopted {
            Some(group) => self.cluster.committed(group, topic, partitions).await?,
            None => vec![None; partitions],
        };
        let keeps = catalogue.keeps(topic);
        let begin = |((low, high), committed): ((i64, i64), Option<Mark>)| {
            committed.unwrap_or(Mark::at(if keeps || adopted.is_some() { low } else { high }))
        };
        Ok(ends.into_iter().zip(committed).map(begin).collect())
    }

    /// What was addressed to the adopted subscription alone, and is not settled yet, goes to the one that adopts it.
    async fn adopt_retries(&self, adopted: &str, retries: &Text) -> Result<()> {
        let from = retry_topic(adopted);
        let Some(partitions) = self.cluster.partitions(&from).await? else { return Ok(()) };
        let committed = self.cluster.committed(adopted, &from, partitions).await?;
        for (partition, committed) in committed.into_iter().enumerate() {
            let at = committed.as_ref().map_or(Offset::Beginning, |mark| Offset::Offset(mark.offset));
            let settled = committed.map_or_else(BTreeSet::new, |mark| {
                settled_above(u64::try_from(mark.offset).unwrap_or(0), &mark.details)
            });
            let held = read_all(&self.cluster, &from, partition as i32, at).await?;
            let held: Vec<_> = held
                .into_iter()
                .filter(|record| !settled.contains(&record.offset))
                .map(|record| Outgoing {
                    topic: retries.clone(),
                    key: record.key,
                    headers: record.headers,
                    body: record.body,
                })
                .collect();
            self.outbox.send(&held).await.into_iter().try_for_each(|answer| answer.map(drop))?;
        }
        self.cluster.delete(&from, adopted).await;
        Ok(())
    }

    /// Names all that is missing: the delay topics among it are known.
    async fn check_missing(&self, wanted: &Wanted, shelves: &[NewOne]) -> Result<()> {
        let mut missing = vec![];
        for topic in &wanted.topics {
            if self.cluster.partitions(topic).await?.is_none() {
                missing.push(format!("topic `{topic}`"));
            }
        }
        for (topic, name) in &wanted.subscriptions {
            if self.cluster.partitions(&retry_topic(&group_name(topic, name))).await?.is_none() {
                missing.push(format!("subscription `{topic}/{name}`"));
            }
        }
        missing.extend(names(shelves));
        if missing.is_empty() { Ok(()) } else { Err(not_found(&missing.join(", "))) }
    }
}

fn check_conflicts(catalogue: &Catalogue, topics: &[Topic], wanted: &Wanted) -> Result<()> {
    for (index, topic) in topics.iter().enumerate() {
        let asked = topics[..index].iter().find(|other| other.name == topic.name);
        let declared = catalogue.unclaimed(&topic.name).or(asked.map(|other| other.unclaimed));
        if let Some(unclaimed) = declared {
            Topic { name: topic.name.clone(), unclaimed }.check_same(topic)?;
        }
    }
    for (index, (topic, name)) in wanted.subscriptions.iter().enumerate() {
        let group = group_name(topic, name);
        let exists = catalogue.group(&group).map(|entry| (&entry.topic, &entry.name));
        let asked = wanted.subscriptions[..index].iter().map(|(topic, name)| (topic, name));
        let mut others = exists.into_iter().chain(asked.filter(|(t, n)| group_name(t, n) == group));
        if let Some((other, of)) = others.find(|other| *other != (topic, name)) {
            return Err(conflict(format!(
                "the subscriptions `{topic}/{name}` and `{other}/{of}` would share the group `{group}`: \
                 rename one of them"
            )));
        }
    }
    Ok(())
}

fn conflict(text: String) -> Error {
    Error::new(ErrorKind::Conflict, text)
}

/// What delay topics are called where they are missing.
pub(crate) fn names(shelves: &[NewOne]) -> Vec<String> {
    shelves.iter().map(|shelf| format!("delay topic `{}`", shelf.name)).collect()
}

pub(crate) fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("Kafka has no {what}: provision it first"))
}
