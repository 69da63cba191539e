//! Creation of topics and subscriptions: the whole request is checked before anything is created.

use crate::{
    fault::Sql,
    flow::CHUNK,
    halt::{Halt, refused},
    places::Places,
    signals::Signal,
    tx::Tx,
};
use dwell_core::{
    Address, Error, ErrorKind, OnMissing, SettingChanges, Subscription, Text, Topic, Unclaimed,
};
use std::collections::BTreeMap;

/// Topics and subscriptions to create or change, ordered by name, so that equal requests give equal
/// files.
#[derive(Default)]
struct Plan {
    topics: BTreeMap<Text, Claim>,
    subscriptions: Vec<Subscription>,
    /// Existing subscriptions with new settings.
    changed: Vec<Changed>,
    changes: Vec<SettingChanges>,
}

/// Existing subscription with its new settings.
struct Changed {
    topic: i64,
    queue: i64,
    settings: Subscription,
}

/// Treatment of messages without a subscriber in a topic.
#[derive(Clone, Copy)]
struct Claim {
    unclaimed: Unclaimed,
    /// Set if the request declares it; otherwise it is the default of a topic created for a
    /// subscription.
    is_declared: bool,
    /// Set if the topic exists and only takes this setting.
    is_there: bool,
    /// Set if it is part of this request.
    is_planned: bool,
}

impl Plan {
    /// Returns an error that names everything that is missing, if anything is.
    fn is_all_there(&self, file: &dyn std::fmt::Display) -> Result<(), Halt> {
        let topics = self.topics.iter().filter(|(_, claim)| !claim.is_there);
        let topics = topics.map(|(name, _)| format!("the topic `{name}`"));
        let subscriptions =
            self.subscriptions.iter().map(|missing| format!("the subscription `{}`", missing.address()));
        let missing: Vec<_> = topics.chain(subscriptions).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.join(", ");
        let text = format!(
            "`{file}` does not contain {missing}: start a program that handles it first, or set `on_missing = \"create\"`"
        );
        Err(refused(ErrorKind::NotFound, text))
    }

    /// Returns everything in the request that does not exist or has other settings, or `Conflict`
    /// if the settings cannot be changed.
    fn of(
        places: &Places,
        topics: &[Topic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<Self, Error> {
        let mut plan = Self::default();
        for topic in Topic::explicit_first(topics) {
            let Some(existing) = plan.claim(places, &topic.name) else {
                plan.add_topic(places, topic);
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
            let unclaimed = topic.unclaimed_or_default();
            let claim = Claim { unclaimed, is_declared: true, is_planned: true, ..existing };
            plan.topics.insert(topic.name.clone(), claim);
            plan.changes.push(changes);
        }
        for subscription in subscriptions {
            plan.subscribe(places, subscription, &Topic::named(subscription.topic.clone()), on_missing)?;
        }
        for channel in subscriptions.iter().flat_map(Subscription::channels) {
            let topic = Topic::named(channel.topic_name().clone()).keep();
            match channel {
                Address::Topic(_) => plan.add_topic(places, &topic),
                Address::Subscription { topic: of, name } => {
                    if existing(places, of, name).is_none() && plan.subscription(of, name).is_none() {
                        let wanted = Subscription::new(of.clone(), name.clone());
                        plan.subscribe(places, &wanted, &topic, on_missing)?;
                    }
                }
            }
        }
        Ok(plan)
    }

    fn add_topic(&mut self, places: &Places, topic: &Topic) {
        if self.claim(places, &topic.name).is_none() {
            let (unclaimed, is_declared) = (topic.unclaimed_or_default(), topic.unclaimed.is_some());
            let claim = Claim { unclaimed, is_declared, is_there: false, is_planned: true };
            self.topics.insert(topic.name.clone(), claim);
        }
    }

    fn subscribe(
        &mut self,
        places: &Places,
        wanted: &Subscription,
        topic: &Topic,
        on_missing: OnMissing,
    ) -> Result<(), Error> {
        if let Some(planned) = self.subscription(&wanted.topic, &wanted.name) {
            return planned.changes(wanted).check_same_request();
        }
        if let Some((topic, queue)) = existing(places, &wanted.topic, &wanted.name) {
            let changes = places.queues[&queue].settings.changes(wanted);
            changes.check(on_missing)?;
            if !changes.is_empty() {
                self.changed.push(Changed { topic, queue, settings: wanted.clone() });
                self.changes.push(changes);
            }
            return Ok(());
        }
        self.add_topic(places, topic);
        self.subscriptions.push(wanted.clone());
        Ok(())
    }

    /// Returns how an existing or planned topic treats messages without a subscriber.
    fn claim(&self, places: &Places, name: &Text) -> Option<Claim> {
        let there = places.topic_named(name).map(|id| &places.topics[&id]);
        let there = there.map(|topic| Claim {
            unclaimed: if topic.keeps { Unclaimed::Keep } else { Unclaimed::Discard },
            is_declared: topic.is_declared,
            is_there: true,
            is_planned: false,
        });
        self.topics.get(name).copied().or(there)
    }

    /// Returns the settings of a subscription in this request.
    fn subscription(&self, topic: &Text, name: &Text) -> Option<&Subscription> {
        let changed = self.changed.iter().map(|changed| &changed.settings);
        let mut planned = self.subscriptions.iter().chain(changed);
        planned.find(|planned| planned.topic == *topic && planned.name == *name)
    }
}

/// Returns the numbers of an existing subscription and its topic.
fn existing(places: &Places, topic: &Text, name: &Text) -> Option<(i64, i64)> {
    let topic = places.topic_named(topic)?;
    Some((topic, places.queue_named(topic, name)?))
}

impl Tx<'_> {
    /// Creates what is missing, or reports it. Returns whether the request is complete: the
    /// necessary work may exceed one transaction.
    pub(crate) fn provision(
        &mut self,
        topics: &[Topic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<bool, Halt> {
        let plan = Plan::of(self.places(), topics, subscriptions, on_missing)?;
        if on_missing == OnMissing::Validate {
            plan.is_all_there(self.file_name())?;
            return Ok(true);
        }
        // A new subscription does not get messages that were due before.
        for name in plan.subscriptions.iter().map(|subscription| &subscription.topic) {
            let Some(topic) = self.places().topic_named(name) else { continue };
            let promoted = self.promote(topic, CHUNK)?;
            if promoted.is_more {
                let goes_on = promoted.moved > 0 || !promoted.is_stuck || self.promote_one(topic)?;
                return if goes_on { Ok(false) } else { Err(self.no_room_for_due()) };
            }
        }
        self.make(plan)?;
        // Retry all refused rows before the request is complete, since no receiver may exist to do
        // it.
        let is_more = self.try_again()?;
        self.taken_in = None;
        Ok(!is_more)
    }

    fn make(&mut self, plan: Plan) -> Sql<()> {
        let is_new = !plan.topics.is_empty() || !plan.subscriptions.is_empty();
        for (name, Claim { unclaimed, is_declared, .. }) in plan.topics {
            let keeps = unclaimed == Unclaimed::Keep;
            match self.places().topic_named(&name) {
                Some(id) => {
                    self.sql("UPDATE topic SET keeps = ?2, declared = ?3 WHERE id = ?1")?.execute((
                        id,
                        keeps,
                        is_declared,
                    ))?;
                    self.places_changed()?;
                }
                None => _ = self.insert_topic(&name, keeps, is_declared)?,
            }
        }
        for Changed { topic, queue, settings } in plan.changed {
            let is_adopter = self.places().topics[&topic].adopter == Some(queue);
            self.write_queue(queue, topic, &settings, true, is_adopter)?;
            self.order_changed(queue, &settings)?;
            self.signal(queue, Signal::All);
        }
        self.changed(plan.changes);
        for subscription in plan.subscriptions {
            if let Some(topic) = self.places().topic_named(&subscription.topic) {
                self.subscribe(topic, &subscription)?;
            }
        }
        if is_new {
            // Refused rows of other programs may have a destination now.
            self.own.marks.tried_again = Some(i64::MIN);
        }
        Ok(())
    }

    fn subscribe(&mut self, topic: i64, subscription: &Subscription) -> Sql<()> {
        let of = &self.places().topics[&topic];
        let kept = of.kept.filter(|_| of.subscribed.is_empty());
        let Some(kept) = kept else {
            self.insert_queue(topic, subscription, true)?;
            return Ok(());
        };
        // The first subscription takes over the kept messages by becoming their subscription: its
        // ready, pending and leased messages stay where they are.
        let is_adopter = subscription.name != of.name;
        if is_adopter {
            // The name may already be known as the origin of a dead letter.
            let known = self.place(&subscription.topic, &subscription.name)?;
            self.merge(known, kept)?;
            self.sql("UPDATE place SET subscription = ?2 WHERE id = ?1")?
                .execute((kept, &*subscription.name))?;
        }
        self.write_queue(kept, topic, subscription, true, is_adopter)?;
        self.order_changed(kept, subscription)
    }

    /// Makes messages put aside ready once the subscription is no longer ordered.
    fn order_changed(&mut self, queue: i64, settings: &Subscription) -> Sql<()> {
        if !settings.ordered {
            self.sql("UPDATE message SET phase = 1 WHERE place = ?1 AND phase = 2")?.execute([queue])?;
        }
        Ok(())
    }

    /// Moves everything that belongs to one place to another, and removes the first.
    fn merge(&mut self, from: i64, into: i64) -> Sql<()> {
        if self.sql("SELECT 1 FROM tally WHERE home = ?1 AND messages > 0")?.exists([from])? {
            self.sql("UPDATE message SET home = ?2 WHERE home = ?1")?.execute((from, into))?;
        }
        self.sql(
            "INSERT INTO tally SELECT ?2, state, messages, bytes FROM tally WHERE home = ?1
             ON CONFLICT (home, state) DO UPDATE
             SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes",
        )?
        .execute((from, into))?;
        self.sql("DELETE FROM tally WHERE home = ?1")?.execute([from])?;
        self.sql("DELETE FROM place WHERE id = ?1")?.execute([from])?;
        Ok(())
    }
}
