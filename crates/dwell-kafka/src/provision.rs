//! Provisioning: creates topics, groups and retry topics, or checks that they exist.

use crate::{
    catalogue::{Catalogue, Change, Entry},
    cluster::{Cluster, Mark, NewOne},
    kept,
    names::{group_name, retry_topic},
    outbox::Outbox,
    relay,
};
use dwell_core::{
    Address, Clock, Error, ErrorKind, OnMissing, Result, SettingChanges, Subscription, Text, Topic, wire,
};
use std::{sync::Arc, time::Duration};

/// How long to wait for another process that creates the same subscription at this moment.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// Creates and checks topics and subscriptions.
#[derive(Clone)]
pub(crate) struct Provisioner {
    pub(crate) cluster: Cluster,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The topics that a subscription reads.
pub(crate) struct Reads {
    /// Its topic, its retry topic, and the retry topic of the default subscription that it has
    /// adopted.
    pub(crate) topics: Vec<String>,
    /// Whether declaring another subscription may change the topics.
    pub(crate) may_change: bool,
}

/// The topics and subscriptions that must exist.
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
    /// Checks everything before it creates anything, so that a conflict leaves nothing half done.
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
        check_groups(&catalogue, &wanted)?;
        let changed = setting_changes(&catalogue, topics, on_missing)?;
        let shelves = relay::look(&self.cluster).await?;
        kept::warn_of_others(&self.cluster, &wanted.topics).await;
        if on_missing == OnMissing::Validate {
            return self.check_missing(&catalogue, &wanted, &shelves).await;
        }
        relay::make(&self.cluster, &shelves).await?;
        let mut new = vec![];
        for topic in &wanted.topics {
            if self.cluster.partitions(topic).await?.is_none() {
                new.push(self.topic(topic.clone()));
            }
        }
        self.cluster.create(&new).await?;
        let explicit = topics.iter().filter_map(|topic| Some((topic.name.clone(), topic.unclaimed?)));
        let changes: Vec<_> = explicit
            .filter(|(name, unclaimed)| catalogue.unclaimed(name) != Some(*unclaimed))
            .map(|(name, unclaimed)| Change::Topic(name, unclaimed))
            .collect();
        Catalogue::write(&self.cluster, &self.outbox, &changes).await?;
        changed.iter().for_each(SettingChanges::log);
        let mut catalogue = catalogue.with(&changes);
        for (topic, name) in &wanted.subscriptions {
            if catalogue.keeps(topic) {
                // Another program may have read the default subscription while topics were created,
                // and a default subscription is adopted once: by an earlier one of these
                // subscriptions, or by a program that provisions at the same time.
                catalogue = Catalogue::read(&self.cluster).await?;
            }
            self.subscribe(&catalogue, topic, name, true).await?;
        }
        Ok(())
    }

    /// Returns the topics that a subscription reads. `NotFound` for the default subscription of a
    /// topic that another subscription has adopted: all of its messages belong to that one.
    pub(crate) async fn reads(&self, of: &Subscription) -> Result<Reads> {
        let is_own = of.name == of.topic;
        let [retries, kept] = [&of.name, &of.topic].map(|name| retry_topic(&group_name(&of.topic, name)));
        let mut reads = Reads { topics: vec![of.topic.to_string(), retries], may_change: false };
        // Most topics have never had a default subscription. If this user may not look, the
        // catalogue decides.
        let is_kept = !matches!(self.cluster.partitions(&kept).await, Ok(None));
        if !is_own && !is_kept {
            return Ok(reads);
        }
        let catalogue = Catalogue::read(&self.cluster).await?;
        if is_own {
            if let Some(by) = catalogue.claimed(&of.topic) {
                let text = format!(
                    "the default subscription of `{}` was adopted by the subscription `{by}`: consume that one",
                    of.topic
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            reads.may_change = catalogue.keeps(&of.topic) && !catalogue.declares_own(&of.topic);
        } else if catalogue.adopter(&of.topic) == Some(&of.name) {
            reads.topics.push(kept);
            reads.may_change = true;
        } else {
            // It may still adopt the default subscription, where its own topics were created by
            // hand.
            reads.may_change = catalogue.has_default(&of.topic);
        }
        Ok(reads)
    }

    /// Creates the default subscription of a topic, which consumes messages without a subscription.
    /// This happens when it is first read: until then the topic itself keeps the messages. Returns
    /// whether the topic has one.
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
        let retention = settings.retention.map(|time| ("retention.ms", time.as_millis().to_string()));
        let set = match wire::is_dead_letter_topic(&name) {
            true => kept::settings(),
            false => retention.into_iter().collect(),
        };
        NewOne { name, partitions: settings.partitions, settings: set }
    }

    /// Creates a subscription, unless it exists. The process that creates the retry topic commits
    /// the initial offsets, and is the only one to do so: a second process would commit later
    /// offsets and skip messages. A process that takes over from one that died, or is slow, only
    /// commits where no offset was committed.
    ///
    /// No message is copied from an adopted default subscription. Its retry topic stays and is read
    /// as well: delayed messages may arrive there for years, and two processes that adopt at the
    /// same time have the same effect as one.
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
        let (retries, default) = (Text::from(retry_topic(&group)), group_name(topic, topic));
        let adopts = name != topic && catalogue.has_default(topic);
        if adopts {
            // The retry topic must not exist before this entry: a process that finds it reads both
            // topics.
            let adopted = Change::Adopted(topic.clone(), name.clone());
            Catalogue::write(&self.cluster, &self.outbox, &[adopted]).await?;
        }
        let made = match self.cluster.partitions(&retries).await? {
            Some(_) => false,
            None => !self.cluster.create(&[self.topic(retries.clone())]).await?.is_empty(),
        };
        if !made && self.is_made_by_another(&group).await? {
            return Ok(());
        }
        let mut changes = vec![Change::Group(group.clone(), entry)];
        let adopted = adopts.then_some(&*default);
        let mut starts = vec![(topic.clone(), self.start(catalogue, topic, adopted).await?)];
        if adopts {
            let kept = Text::from(retry_topic(&default));
            starts.push((kept.clone(), self.start(catalogue, &kept, adopted).await?));
            changes.push(Change::NoGroup(default.as_str().into()));
        }
        // A default subscription that is declared takes its name back.
        let adopter = catalogue.adopter(topic).filter(|_| name == topic);
        if adopter.is_some() {
            changes.push(Change::NotAdopted(topic.clone()));
        }
        if made {
            // The retry topic is empty. Its offsets are committed here, so that no consumer has to
            // determine them when the first retry arrives.
            let partitions = self.cluster.partitions(&retries).await?.unwrap_or(0);
            starts.push((retries, vec![Mark::at(0); partitions]));
        } else if let Some(adopter) = adopter {
            let start = self.start(catalogue, &retries, Some(&group_name(topic, adopter))).await?;
            starts.push((retries, start));
        }
        // Where another process has committed before, its offsets stand: publishers may have been
        // told that the subscription is ready, and messages sent since then lie before the ends
        // that were read here.
        self.cluster.begin(&group, starts).await?;
        Catalogue::write(&self.cluster, &self.outbox, &changes).await?;
        if adopts {
            self.cluster.delete_group(&default).await;
        }
        Ok(())
    }

    /// Waits for the entry of a subscription whose retry topic exists: another process is creating
    /// it, or died while it did.
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

    /// Returns the initial offset of a new group in each partition of a topic. That is the offset
    /// of the group that it follows, else the first record of a topic that keeps messages, else the
    /// end.
    async fn start(&self, catalogue: &Catalogue, topic: &Text, former: Option<&str>) -> Result<Vec<Mark>> {
        let Some(partitions) = self.cluster.partitions(topic).await? else { return Ok(vec![]) };
        let ends = self.cluster.ends(topic, partitions).await?;
        let committed = match former {
            Some(group) => self.cluster.committed(group, topic, partitions).await?,
            None => vec![None; partitions],
        };
        let keeps = catalogue.keeps(topic);
        let begin = |((low, high), committed): ((i64, i64), Option<Mark>)| {
            committed.unwrap_or(Mark::at(if keeps || former.is_some() { low } else { high }))
        };
        Ok(ends.into_iter().zip(committed).map(begin).collect())
    }

    /// Fails with the names of all missing topics and subscriptions. Missing delay topics are
    /// given.
    async fn check_missing(&self, catalogue: &Catalogue, wanted: &Wanted, shelves: &[NewOne]) -> Result<()> {
        let mut missing = vec![];
        for topic in &wanted.topics {
            if self.cluster.partitions(topic).await?.is_none() {
                missing.push(format!("topic `{topic}`"));
            }
        }
        for (topic, name) in &wanted.subscriptions {
            let is_adopted = name == topic && catalogue.claimed(topic).is_some();
            let retries = retry_topic(&group_name(topic, name));
            if is_adopted || self.cluster.partitions(&retries).await?.is_none() {
                missing.push(format!("subscription `{topic}/{name}`"));
            }
        }
        missing.extend(names(shelves));
        if missing.is_empty() { Ok(()) } else { Err(not_found(&missing.join(", "))) }
    }
}

/// Returns the settings of declared topics that change. `Conflict` if one of them cannot be
/// changed.
fn setting_changes(
    catalogue: &Catalogue,
    topics: &[Topic],
    on_missing: OnMissing,
) -> Result<Vec<SettingChanges>> {
    let mut all = vec![];
    for (index, topic) in topics.iter().enumerate() {
        let mut asked = topics[..index].iter().filter(|other| other.name == topic.name);
        if let Some(unclaimed) = asked.find_map(|other| other.unclaimed) {
            topic.changes(unclaimed).check_same_request()?;
        }
        if let Some(existing) = catalogue.unclaimed(&topic.name) {
            let changes = topic.changes(existing);
            changes.check(on_missing)?;
            all.push(changes);
        }
    }
    Ok(all)
}

/// Checks that no two subscriptions share a group.
fn check_groups(catalogue: &Catalogue, wanted: &Wanted) -> Result<()> {
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

/// Returns the names of missing delay topics, for an error.
pub(crate) fn names(shelves: &[NewOne]) -> Vec<String> {
    shelves.iter().map(|shelf| format!("delay topic `{}`", shelf.name)).collect()
}

/// Advice about a topic that does not exist.
pub(crate) const MAKE_IT: &str =
    "start a program that handles it, create it, or set `on_missing = \"create\"`";

pub(crate) fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("Kafka has no {what}: {MAKE_IT}"))
}
