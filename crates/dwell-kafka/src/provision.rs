//! Making sure that topics, groups and retry topics are there.

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

/// What a subscription reads.
pub(crate) struct Reads {
    /// Its topic, its retry topic, and the retry topic of the one that it has adopted.
    pub(crate) topics: Vec<String>,
    /// Another that is declared may change that.
    pub(crate) may_change: bool,
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
                // Somebody may have read under its own name while topics were made, and that one is adopted once: by an
                // earlier one of these, or by whoever was at it meanwhile.
                catalogue = Catalogue::read(&self.cluster).await?;
            }
            self.subscribe(&catalogue, topic, name, true).await?;
        }
        Ok(())
    }

    /// What a subscription reads. `NotFound` for the topic's own name where somebody else has subscribed: all of it is theirs.
    pub(crate) async fn reads(&self, of: &Subscription) -> Result<Reads> {
        let is_own = of.name == of.topic;
        let [retries, kept] = [&of.name, &of.topic].map(|name| retry_topic(&group_name(&of.topic, name)));
        let mut reads = Reads { topics: vec![of.topic.to_string(), retries], may_change: false };
        // Most topics have kept nothing. If we may not know, the catalogue tells.
        let is_kept = !matches!(self.cluster.partitions(&kept).await, Ok(None));
        if !is_own && !is_kept {
            return Ok(reads);
        }
        let catalogue = Catalogue::read(&self.cluster).await?;
        if is_own {
            if let Some(by) = catalogue.claimed(&of.topic) {
                let text = format!(
                    "what `{}` kept for itself was adopted by its subscription `{by}`: consume that one",
                    of.topic
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            reads.may_change = catalogue.keeps(&of.topic) && !catalogue.declares_own(&of.topic);
        } else if catalogue.adopter(&of.topic) == Some(&of.name) {
            reads.topics.push(kept);
            reads.may_change = true;
        } else {
            // It may adopt that one yet, where its own topics were made by hand.
            reads.may_change = catalogue.has_default(&of.topic);
        }
        Ok(reads)
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
        let retention = settings.retention.map(|time| ("retention.ms", time.as_millis().to_string()));
        let set = match wire::is_dead_letter_topic(&name) {
            true => kept::settings(),
            false => retention.into_iter().collect(),
        };
        NewOne { name, partitions: settings.partitions, settings: set }
    }

    /// Makes the subscription, unless it is there. Whoever makes its retry topic says where it begins, alone: a second
    /// one who said so later would skip what came between. One who takes over from it, and all who are slow, only say so
    /// where nobody has.
    ///
    /// Nothing is copied from the one that it adopts, whose retry topic stays and is read as well: there may be more on its way
    /// to that for years, and two who are at this at one time do no more than one.
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
            // Before there is a retry topic: whoever finds that reads both.
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
        // One that is declared has its own name back.
        let adopter = catalogue.adopter(topic).filter(|_| name == topic);
        if adopter.is_some() {
            changes.push(Change::NotAdopted(topic.clone()));
        }
        if made {
            // Nothing can be in it yet. Said here, so that no consumer has to find out when its first retry comes.
            let partitions = self.cluster.partitions(&retries).await?.unwrap_or(0);
            starts.push((retries, vec![Mark::at(0); partitions]));
        } else if let Some(adopter) = adopter {
            let start = self.start(catalogue, &retries, Some(&group_name(topic, adopter))).await?;
            starts.push((retries, start));
        }
        // Where another has said so before, that stands: publishers were told that all is ready, and what came since lies before
        // the end as we have seen it.
        self.cluster.begin(&group, starts).await?;
        Catalogue::write(&self.cluster, &self.outbox, &changes).await?;
        if adopts {
            self.cluster.delete_group(&default).await;
        }
        Ok(())
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

    /// Where a new group begins in each partition of a topic: where the group is that it follows, else at the first record
    /// of a topic that keeps, else behind the last.
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

    /// Names all that is missing: the delay topics among it are known.
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

/// The settings of declared topics that change. `Conflict` if one cannot be changed.
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

/// Two pairs of names must not share a group.
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

/// What delay topics are called where they are missing.
pub(crate) fn names(shelves: &[NewOne]) -> Vec<String> {
    shelves.iter().map(|shelf| format!("delay topic `{}`", shelf.name)).collect()
}

/// What to do about a topic that is not there.
pub(crate) const MAKE_IT: &str =
    "start a program that handles it, create it, or set `on_missing = \"create\"`";

pub(crate) fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("Kafka has no {what}: {MAKE_IT}"))
}
