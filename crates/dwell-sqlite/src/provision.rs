//! Making topics and subscriptions: all that is asked for is checked before anything is made.

use crate::{
    fault::Sql,
    flow::CHUNK,
    halt::{Halt, refused},
    places::Places,
    tx::Tx,
};
use dwell_core::{Address, Error, ErrorKind, OnMissing, Subscription, Text, Topic, Unclaimed};
use std::collections::BTreeMap;

/// What is to be made, by name. Made in the order of the names, so that the same request gives the same file.
#[derive(Default)]
struct Plan {
    topics: BTreeMap<Text, Claim>,
    subscriptions: Vec<Subscription>,
}

/// What a topic does with what nobody subscribed to.
#[derive(Clone, Copy)]
struct Claim {
    keeps: bool,
    /// Somebody said so; else it only comes with a subscription, and may still be said.
    is_declared: bool,
    /// The topic is there, and only learns this.
    is_there: bool,
}

impl Plan {
    /// An error that names all that is missing, if anything is.
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
            "not in `{file}`: {missing}; start a program that handles it first, or set `on_missing = \"create\"`"
        );
        Err(refused(ErrorKind::NotFound, text))
    }

    /// What is missing of all that these need. `Conflict` if something is there with other settings.
    fn of(places: &Places, topics: &[Topic], subscriptions: &[Subscription]) -> Result<Self, Error> {
        let mut plan = Self::default();
        for topic in topics {
            let keeps = topic.unclaimed == Unclaimed::Keep;
            match plan.claim(places, &topic.name) {
                Some(Claim { keeps, is_declared: true, .. }) => {
                    let unclaimed = if keeps { Unclaimed::Keep } else { Unclaimed::Discard };
                    Topic { name: topic.name.clone(), unclaimed }.check_same(topic)?;
                }
                // Not there, or there only because somebody subscribed to it, who said nothing about it.
                before => {
                    let is_there = before.is_some_and(|claim| claim.is_there);
                    plan.topics.insert(topic.name.clone(), Claim { keeps, is_declared: true, is_there });
                }
            }
        }
        for subscription in subscriptions {
            plan.subscribe(places, subscription, &Topic::named(subscription.topic.clone()))?;
        }
        for channel in subscriptions.iter().flat_map(Subscription::channels) {
            let topic = Topic::named(channel.topic_name().clone()).keep();
            match channel {
                Address::Topic(_) => plan.add_topic(places, &topic),
                Address::Subscription { topic: of, name } => {
                    if plan.declared(places, of, name).is_none() {
                        plan.subscribe(places, &Subscription::new(of.clone(), name.clone()), &topic)?;
                    }
                }
            }
        }
        Ok(plan)
    }

    fn add_topic(&mut self, places: &Places, topic: &Topic) {
        if self.claim(places, &topic.name).is_none() {
            let keeps = topic.unclaimed == Unclaimed::Keep;
            self.topics.insert(topic.name.clone(), Claim { keeps, is_declared: false, is_there: false });
        }
    }

    fn subscribe(&mut self, places: &Places, wanted: &Subscription, topic: &Topic) -> Result<(), Error> {
        if let Some(found) = self.declared(places, &wanted.topic, &wanted.name) {
            return found.check_same(wanted);
        }
        self.add_topic(places, topic);
        self.subscriptions.push(wanted.clone());
        Ok(())
    }

    /// What a topic that is there, or planned, does with what nobody subscribed to.
    fn claim(&self, places: &Places, name: &Text) -> Option<Claim> {
        let there = places.topic_named(name).map(|id| &places.topics[&id]);
        let there =
            there.map(|topic| Claim { keeps: topic.keeps, is_declared: topic.is_declared, is_there: true });
        self.topics.get(name).copied().or(there)
    }

    /// The settings of a subscription that is there, or planned.
    fn declared<'a>(&'a self, places: &'a Places, topic: &Text, name: &Text) -> Option<&'a Subscription> {
        let there = places.topic_named(topic).and_then(|id| places.queue_named(id, name));
        let there = there.map(|queue| &places.queues[&queue].settings);
        let mut planned = self.subscriptions.iter();
        there.or_else(|| planned.find(|planned| planned.topic == *topic && planned.name == *name))
    }
}

impl Tx<'_> {
    /// Makes what is missing, or says so. Returns whether that is all: there may be more to do first than fits one
    /// transaction.
    pub(crate) fn provision(
        &mut self,
        topics: &[Topic],
        subscriptions: &[Subscription],
        on_missing: OnMissing,
    ) -> Result<bool, Halt> {
        let plan = Plan::of(self.places(), topics, subscriptions)?;
        if on_missing == OnMissing::Validate {
            plan.is_all_there(self.file_name())?;
            return Ok(true);
        }
        // Whoever subscribes now does not get what was due before.
        for name in plan.subscriptions.iter().map(|subscription| &subscription.topic) {
            let Some(topic) = self.places().topic_named(name) else { continue };
            let promoted = self.promote(topic, CHUNK)?;
            if promoted.is_more {
                let goes_on = promoted.moved > 0 || !promoted.is_stuck || self.promote_one(topic)?;
                return if goes_on { Ok(false) } else { Err(self.no_room_for_due()) };
            }
        }
        self.make(plan)?;
        // All of it before this is done: nobody may receive here.
        let is_more = self.try_again()?;
        self.taken_in = None;
        Ok(!is_more)
    }

    fn make(&mut self, plan: Plan) -> Sql<()> {
        let is_new = !plan.topics.is_empty() || !plan.subscriptions.is_empty();
        for (name, Claim { keeps, is_declared, .. }) in plan.topics {
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
        for subscription in plan.subscriptions {
            if let Some(topic) = self.places().topic_named(&subscription.topic) {
                self.subscribe(topic, &subscription)?;
            }
        }
        if is_new {
            // What another program has put there may have somewhere to go now.
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
        // The first subscription takes over what was kept for it. It becomes that subscription: what is ready, what waits
        // and what is in somebody's hands is then its own.
        let is_adopter = subscription.name != of.name;
        if is_adopter {
            // The name may be known as one that something dead came from.
            let known = self.place(&subscription.topic, &subscription.name)?;
            self.merge(known, kept)?;
            self.sql("UPDATE place SET subscription = ?2 WHERE id = ?1")?
                .execute((kept, &*subscription.name))?;
        }
        self.write_queue(kept, topic, subscription, true, is_adopter)?;
        if !subscription.ordered {
            // Nobody takes turns any more.
            self.sql("UPDATE message SET phase = 1 WHERE place = ?1 AND phase = 2")?.execute([kept])?;
        }
        Ok(())
    }

    /// What belongs to one place belongs to another from now on, and the first is no more.
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
