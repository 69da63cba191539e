//! Provisioning of topics and subscriptions. The whole request is checked before anything is
//! created.

use super::{
    item::Item,
    queue::{Queue, Signal},
    state::{QueueAt, State, TopicAt},
    topic::Topic,
};
use dwell_core::{
    Address, Error, ErrorKind, OnMissing, Result, SettingChanges, Subscription, Text, Topic as DeclaredTopic,
    Unclaimed,
};
use std::collections::BTreeMap;

/// The changes of a request, by name. They are made in the order of the names, so that equal
/// requests create equal transports.
#[derive(Default)]
pub(super) struct Plan {
    topics: BTreeMap<Text, Claim>,
    subscriptions: Vec<Subscription>,
    /// Existing subscriptions that take other settings.
    changed: Vec<(QueueAt, Subscription)>,
    changes: Vec<SettingChanges>,
}

/// Setting of a topic for messages without a subscription.
#[derive(Clone, Copy)]
struct Claim {
    unclaimed: Unclaimed,
    /// Whether the topic exists, and only takes this setting.
    is_there: bool,
    /// Whether the topic is part of this request.
    is_planned: bool,
}

impl Plan {
    fn subscription(&self, topic: &Text, name: &Text) -> Option<&Subscription> {
        let changed = self.changed.iter().map(|(_, changed)| changed);
        let mut planned = self.subscriptions.iter().chain(changed);
        planned.find(|planned| planned.topic == *topic && planned.name == *name)
    }

    /// Iterates over the topics that get a new subscription.
    pub(super) fn subscribes_to(&self) -> impl Iterator<Item = &Text> {
        self.subscriptions.iter().map(|subscription| &subscription.topic)
    }

    /// Returns an error that names everything that is missing.
    pub(super) fn is_all_there(&self) -> Result<()> {
        let topics = self.topics.iter().filter(|(_, claim)| !claim.is_there);
        let topics = topics.map(|(name, _)| format!("the topic `{name}`"));
        let subscriptions =
            self.subscriptions.iter().map(|missing| format!("the subscription `{}`", missing.address()));
        let missing: Vec<_> = topics.chain(subscriptions).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "missing in this memory transport: {}; set `on_missing = \"create\"`",
                missing.join(", ")
            ),
        ))
    }
}

impl State {
    /// Returns what a request has to create or change. `Conflict` if settings may not be changed.
    pub(super) fn plan(
        &self,
        topics: &[DeclaredTopic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<Plan> {
        let mut plan = Plan::default();
        for topic in DeclaredTopic::explicit_first(topics) {
            let Some(existing) = self.unclaimed(&plan, &topic.name) else {
                self.plan_topic(&mut plan, topic);
                continue;
            };
            let changes = topic.changes(existing.unclaimed);
            if changes.is_empty() {
                continue;
            }
            if existing.is_planned {
                changes.check_same_request()?;
            }
            changes.check(on_missing)?;
            let claim = Claim { unclaimed: topic.unclaimed_or_default(), is_planned: true, ..existing };
            plan.topics.insert(topic.name.clone(), claim);
            plan.changes.push(changes);
        }
        for subscription in subscriptions {
            let topic = DeclaredTopic::named(subscription.topic.clone());
            self.plan_subscription(&mut plan, subscription, &topic, on_missing)?;
        }
        for channel in subscriptions.iter().flat_map(Subscription::channels) {
            let topic = DeclaredTopic::named(channel.topic_name().clone()).keep();
            match channel {
                Address::Topic(_) => self.plan_topic(&mut plan, &topic),
                Address::Subscription { topic: of, name } => {
                    if self.queue_named(of, name).is_none() && plan.subscription(of, name).is_none() {
                        let wanted = Subscription::new(of.clone(), name.clone());
                        self.plan_subscription(&mut plan, &wanted, &topic, on_missing)?;
                    }
                }
            }
        }
        Ok(plan)
    }

    fn plan_topic(&self, plan: &mut Plan, topic: &DeclaredTopic) {
        if self.unclaimed(plan, &topic.name).is_none() {
            let unclaimed = topic.unclaimed_or_default();
            let claim = Claim { unclaimed, is_there: false, is_planned: true };
            plan.topics.insert(topic.name.clone(), claim);
        }
    }

    fn plan_subscription(
        &self,
        plan: &mut Plan,
        wanted: &Subscription,
        topic: &DeclaredTopic,
        on_missing: OnMissing,
    ) -> Result<()> {
        if let Some(planned) = plan.subscription(&wanted.topic, &wanted.name) {
            return planned.changes(wanted).check_same_request();
        }
        if let Some((at, existing)) = self.queue_named(&wanted.topic, &wanted.name) {
            let changes = existing.changes(wanted);
            changes.check(on_missing)?;
            if !changes.is_empty() {
                plan.changed.push((at, wanted.clone()));
                plan.changes.push(changes);
            }
            return Ok(());
        }
        self.plan_topic(plan, topic);
        plan.subscriptions.push(wanted.clone());
        Ok(())
    }

    /// Returns the setting of an existing or planned topic for messages without a subscription.
    fn unclaimed(&self, plan: &Plan, name: &Text) -> Option<Claim> {
        let there = self.names.get(name).map(|at| &self.topics[at.0]);
        let there =
            there.map(|topic| Claim { unclaimed: topic.unclaimed, is_there: true, is_planned: false });
        plan.topics.get(name).copied().or(there)
    }

    /// Returns the settings of an existing subscription.
    fn queue_named(&self, topic: &Text, name: &Text) -> Option<(QueueAt, &Subscription)> {
        let queue = self.names.get(topic).and_then(|at| self.topics[at.0].names.get(name))?;
        Some((*queue, self.queues[queue.0].declared.as_ref()?))
    }

    /// Carries out the plan. Returns the settings that were changed.
    pub(super) fn make(&mut self, plan: Plan) -> Vec<SettingChanges> {
        for (name, Claim { unclaimed, .. }) in plan.topics {
            if let Some(at) = self.names.get(&name) {
                self.topics[at.0].unclaimed = unclaimed;
                continue;
            }
            self.names.insert(name.clone(), TopicAt(self.topics.len()));
            self.topics.push(Topic::new(name, unclaimed));
        }
        for (at, subscription) in plan.changed {
            self.queues[at.0].declare(subscription);
            self.signal(at, Signal::All);
        }
        for subscription in plan.subscriptions {
            if let Some(at) = self.names.get(&subscription.topic).copied() {
                self.subscribe(at, subscription);
            }
        }
        plan.changes
    }

    fn subscribe(&mut self, at: TopicAt, subscription: Subscription) {
        let name = subscription.name.clone();
        let is_first = self.topics[at.0].subscribed.is_empty();
        let kept = self.topics[at.0].kept.filter(|_| is_first);
        let queue = match kept.filter(|_| name == self.topics[at.0].name) {
            // The subscription is the kept one, which is now declared.
            Some(kept) => {
                self.topics[at.0].kept = None;
                self.queues[kept.0].declare(subscription);
                kept
            }
            None => {
                self.queues.push(Queue::new(at, name.clone(), Some(subscription)));
                let queue = QueueAt(self.queues.len() - 1);
                if let Some(kept) = kept {
                    self.adopt_all(kept, queue);
                }
                queue
            }
        };
        let topic = &mut self.topics[at.0];
        topic.subscribed.push(queue);
        topic.names.insert(name, queue);
    }

    /// Lets the first subscription adopt the kept messages: ready and pending ones now, leased ones
    /// when they come back.
    fn adopt_all(&mut self, from: QueueAt, to: QueueAt) {
        let topic = self.queues[from.0].topic;
        if self.topics[topic.0].is_dead {
            let waiting = self.topics[topic.0].waiting.iter();
            let waiting = waiting.filter(|(_, waiting)| waiting.queue == Some(from));
            let messages: Vec<_> = waiting.map(|(_, waiting)| waiting.item.message.clone()).collect();
            for message in messages {
                self.left(topic, Some(from), &message);
                self.entered(topic, Some(to), &message);
            }
        }
        let waits = std::mem::take(&mut self.queues[from.0].waits);
        self.queues[to.0].waits.absorb(waits);
        self.queues[from.0].adopted_by = Some(to);
        self.queues[to.0].adopted = Some(from);
        let ready = self.queues[from.0].drain();
        self.adopt(from, to, ready);
    }

    /// Puts messages of an adopted queue in front of its adopter.
    pub(super) fn adopt(&mut self, from: QueueAt, to: QueueAt, items: Vec<Item>) {
        let topic = self.queues[from.0].topic;
        for item in &items {
            self.left(topic, Some(from), &item.message);
            self.entered(topic, Some(to), &item.message);
        }
        self.queues[to.0].adopt(items);
    }
}
