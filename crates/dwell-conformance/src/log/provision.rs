//! Provisioning of topics, groups and retry topics.

use super::{
    broker::{LogBroker, State, TopicLog, missing},
    group::{Group, group_name, retry_topic},
};
use dwell_core::{
    Address, Error, ErrorKind, OnMissing, Result, SettingChanges, Subscription, Text, Topic, Unclaimed,
};

/// Requested topics, with their handling of unclaimed messages, and subscriptions.
#[derive(Default)]
struct Wanted {
    topics: Vec<(Text, Option<Unclaimed>)>,
    subscriptions: Vec<(Text, Text)>,
}

impl Wanted {
    fn new(topics: &[Topic], subscriptions: &[Subscription]) -> Self {
        let mut wanted = Self::default();
        wanted.topics.extend(topics.iter().map(|topic| (topic.name.clone(), topic.unclaimed)));
        for subscription in subscriptions {
            wanted.address(&subscription.address(), None);
            for channel in subscription.channels() {
                wanted.address(channel, Some(Unclaimed::Keep));
            }
        }
        wanted
    }

    fn address(&mut self, address: &Address, unclaimed: Option<Unclaimed>) {
        let topic = address.topic_name();
        if !self.topics.iter().any(|(name, _)| name == topic) {
            self.topics.push((topic.clone(), unclaimed));
        }
        if let Some(name) = address.subscription_name() {
            self.subscriptions.push((topic.clone(), name.clone()));
        }
    }
}

impl LogBroker {
    /// Checks everything before it creates anything, so that a conflict has no partial effect.
    pub(super) fn provision(
        &self,
        topics: &[Topic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<()> {
        let mut state = self.running()?;
        if on_missing == OnMissing::Assume {
            return Ok(());
        }
        let wanted = Wanted::new(topics, subscriptions);
        let changes = state.changes(topics, &wanted, on_missing)?;
        if on_missing == OnMissing::Validate {
            return state.check_missing(&wanted);
        }
        let partitions = self.settings().partitions;
        for (topic, unclaimed) in &wanted.topics {
            state.create_topic(topic, *unclaimed, partitions);
        }
        for topic in topics {
            if let (Some(log), Some(unclaimed)) = (state.topics.get_mut(&topic.name), topic.unclaimed) {
                log.unclaimed = Some(unclaimed);
            }
        }
        for (topic, name) in &wanted.subscriptions {
            state.create_group(topic, name, partitions);
        }
        // Topics come last, because a topic that gets a subscription in the same call needs no
        // default subscription.
        for (topic, _) in &wanted.topics {
            if state.keeps(topic) && !state.is_claimed(topic) {
                state.insert_group(Group::new(topic, topic, false, vec![0; partitions]), partitions);
            }
        }
        drop(state);
        changes.iter().for_each(SettingChanges::log);
        Ok(())
    }
}

impl State {
    /// Returns the settings that change. `Conflict` if one cannot be changed, or two pairs of names
    /// result in one group name.
    fn changes(
        &self,
        topics: &[Topic],
        wanted: &Wanted,
        on_missing: OnMissing,
    ) -> Result<Vec<SettingChanges>> {
        let mut all = vec![];
        for (index, topic) in topics.iter().enumerate() {
            let mut asked = topics[..index].iter().filter(|other| other.name == topic.name);
            if let Some(unclaimed) = asked.find_map(|other| other.unclaimed) {
                topic.changes(unclaimed).check_same_request()?;
            }
            if let Some(existing) = self.topics.get(&topic.name).and_then(|log| log.unclaimed) {
                let changes = topic.changes(existing);
                changes.check(on_missing)?;
                all.push(changes);
            }
        }
        for (index, (topic, name)) in wanted.subscriptions.iter().enumerate() {
            let group = group_name(topic, name);
            let exists = self.groups.get(&group).map(|group| (&group.topic, &group.subscription));
            let asked = wanted.subscriptions[..index].iter().map(|(topic, name)| (topic, name));
            let mut others = exists.into_iter().chain(asked.filter(|(t, n)| group_name(t, n) == group));
            if let Some((other, of)) = others.find(|other| *other != (topic, name)) {
                return Err(conflict(format!(
                    "the subscriptions `{topic}/{name}` and `{other}/{of}` would share the group `{group}`: \
                     rename one of them"
                )));
            }
        }
        Ok(all)
    }

    fn check_missing(&self, wanted: &Wanted) -> Result<()> {
        let topics = wanted.topics.iter().map(|(topic, _)| topic);
        let topics = topics.filter(|topic| !self.topics.contains_key(*topic));
        let subscriptions = wanted.subscriptions.iter();
        let subscriptions =
            subscriptions.filter(|(topic, name)| !self.groups.contains_key(&group_name(topic, name)));
        let all: Vec<_> = topics
            .map(|topic| format!("topic `{topic}`"))
            .chain(subscriptions.map(|(topic, name)| format!("subscription `{topic}/{name}`")))
            .collect();
        if all.is_empty() { Ok(()) } else { Err(missing(&all.join(", "))) }
    }

    fn create_topic(&mut self, name: &Text, unclaimed: Option<Unclaimed>, partitions: usize) {
        let log = self.topics.entry(name.clone()).or_insert_with(|| TopicLog::new(partitions, None));
        log.unclaimed = log.unclaimed.or(unclaimed);
    }

    fn create_group(&mut self, topic: &Text, name: &Text, partitions: usize) {
        if let Some(group) = self.groups.get_mut(&group_name(topic, name)) {
            group.declared = true;
            return;
        }
        let default = group_name(topic, topic);
        let default = self.groups.get(&default).filter(|group| group.topic == *topic && !group.declared);
        let Some(default) = default.map(Group::name).and_then(|name| self.groups.remove(&name)) else {
            let from_the_start = self.keeps(topic);
            let start = if from_the_start { vec![0; partitions] } else { self.topics[topic].ends() };
            return self.insert_group(Group::new(topic, name, true, start), partitions);
        };
        let start = default.committed[..partitions].to_vec();
        self.insert_group(Group::new(topic, name, true, start), partitions);
        self.adopt_retries(&default, &group_name(topic, name));
        default.wake.notify_waiters();
    }

    /// Moves the uncommitted messages of the default subscription's retry topic to the subscription
    /// that replaces it.
    fn adopt_retries(&mut self, default: &Group, by: &str) {
        let Some(log) = self.topics.remove(&retry_topic(&default.name())) else { return };
        let committed = &default.committed[log.partitions.len()..];
        let held = log.partitions.into_iter().zip(committed);
        let Some(to) = self.topics.get_mut(&retry_topic(by)) else { return };
        for (partition, (records, committed)) in held.enumerate() {
            to.partitions[partition].extend(records.into_iter().skip(*committed as usize));
        }
    }

    fn insert_group(&mut self, group: Group, partitions: usize) {
        let retries = TopicLog::new(partitions, Some(Unclaimed::Discard));
        self.topics.entry(retry_topic(&group.name())).or_insert(retries);
        self.groups.insert(group.name(), group);
    }

    fn is_claimed(&self, topic: &Text) -> bool {
        self.groups.values().any(|group| group.topic == *topic)
    }
}

fn conflict(text: String) -> Error {
    Error::new(ErrorKind::Conflict, text)
}
