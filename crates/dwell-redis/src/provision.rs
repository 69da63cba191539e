//! Making topics and subscriptions: all that is asked for is checked before anything is made.

use crate::{
    keys,
    places::{LAYOUT, MAKE_IT, Place, text, written},
    script::{DECLARE, PROMOTE},
    store::Store,
};
use dwell_core::{Address, Error, ErrorKind, OnMissing, Result, Subscription, Text, Topic, Unclaimed};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// What a topic is to be.
#[derive(Clone, Default)]
struct Wanted {
    keeps: bool,
    is_declared: bool,
    subscriptions: Vec<Subscription>,
}

/// What there is, and what is missing, by topic.
struct Plan {
    there: BTreeMap<Text, Arc<Place>>,
    missing: BTreeMap<Text, Wanted>,
}

/// How often it is tried again because somebody else was faster.
const ATTEMPTS: usize = 20;

pub(crate) async fn provision(
    store: &Store,
    topics: &[Topic],
    subscriptions: &[Subscription],
    on_missing: OnMissing,
) -> Result<()> {
    store.open()?;
    if on_missing == OnMissing::Assume {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        let plan = Plan::of(store, topics, subscriptions).await?;
        if on_missing == OnMissing::Validate {
            return plan.is_all_there(&store.link.settings.place());
        }
        if make(store, plan).await? {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "others change the same topics all the time: try again"))
}

impl Plan {
    async fn of(store: &Store, topics: &[Topic], subscriptions: &[Subscription]) -> Result<Self> {
        let mut names: Vec<Text> = topics.iter().map(|topic| topic.name.clone()).collect();
        for subscription in subscriptions {
            names.push(subscription.topic.clone());
            names.extend(subscription.channels().map(|channel| channel.topic_name().clone()));
        }
        let mut plan = Self { there: BTreeMap::new(), missing: BTreeMap::new() };
        for name in names {
            if let Entry::Vacant(vacant) = plan.there.entry(name.clone()) {
                vacant.insert(store.places.load(&store.link, &name).await?);
            }
        }
        plan.there.values().try_for_each(|place| check_ledger(store, place))?;
        for topic in topics {
            plan.declare(topic)?;
        }
        for subscription in subscriptions {
            plan.subscribe(subscription, &Topic::named(subscription.topic.clone()))?;
        }
        for channel in subscriptions.iter().flat_map(Subscription::channels) {
            let topic = Topic::named(channel.topic_name().clone()).keep();
            match channel {
                Address::Topic(_) => plan.add(&topic, false),
                Address::Subscription { topic: of, name } => {
                    if plan.declared(of, name).is_none() {
                        plan.subscribe(&Subscription::new(of.clone(), name.clone()), &topic)?;
                    }
                }
            }
        }
        Ok(plan)
    }

    /// What a topic that is there, or planned, does with what nobody subscribed to, and whether somebody said so.
    fn claim(&self, name: &Text) -> Option<(bool, bool)> {
        let planned = self.missing.get(name).map(|wanted| (wanted.keeps, wanted.is_declared));
        let there = self.there.get(name).filter(|place| place.is_there());
        planned.or(there.map(|place| (place.keeps, place.is_declared)))
    }

    fn declare(&mut self, topic: &Topic) -> Result<()> {
        match self.claim(&topic.name) {
            Some((keeps, true)) => {
                let unclaimed = if keeps { Unclaimed::Keep } else { Unclaimed::Discard };
                Topic { name: topic.name.clone(), unclaimed }.check_same(topic)
            }
            _ => {
                self.add(topic, true);
                Ok(())
            }
        }
    }

    fn add(&mut self, topic: &Topic, is_declared: bool) {
        if is_declared || self.claim(&topic.name).is_none() {
            let wanted = self.missing.entry(topic.name.clone()).or_default();
            (wanted.keeps, wanted.is_declared) = (topic.unclaimed == Unclaimed::Keep, is_declared);
        }
    }

    fn subscribe(&mut self, wanted: &Subscription, topic: &Topic) -> Result<()> {
        if let Some(found) = self.declared(&wanted.topic, &wanted.name) {
            return found.check_same(wanted);
        }
        self.add(topic, false);
        let claim = self.claim(&wanted.topic).unwrap_or_default();
        let planned = self.missing.entry(wanted.topic.clone()).or_insert(Wanted {
            keeps: claim.0,
            is_declared: claim.1,
            subscriptions: vec![],
        });
        planned.subscriptions.push(wanted.clone());
        Ok(())
    }

    /// The settings of a subscription that is there, or planned.
    fn declared(&self, topic: &Text, name: &Text) -> Option<&Subscription> {
        let there = self.there.get(topic).and_then(|place| place.subscriptions.get(name));
        let mut planned = self.missing.get(topic).into_iter().flat_map(|wanted| &wanted.subscriptions);
        there.or_else(|| planned.find(|planned| planned.name == *name))
    }

    /// An error that names all that is missing, if anything is.
    fn is_all_there(&self, at: &str) -> Result<()> {
        let mut missing = vec![];
        for (name, wanted) in &self.missing {
            if !self.there[name].is_there() {
                missing.push(format!("the topic `{name}`"));
            }
            let subscriptions = wanted.subscriptions.iter();
            missing.extend(subscriptions.map(|missing| format!("the subscription `{}`", missing.address())));
        }
        if missing.is_empty() {
            return Ok(());
        }
        let text = format!("not at {at}: {}; {MAKE_IT}", missing.join(", "));
        Err(Error::new(ErrorKind::NotFound, text))
    }
}

/// Whether its messages can be looked up is the same for all who use a topic.
fn check_ledger(store: &Store, place: &Place) -> Result<()> {
    let settings = &store.link.settings;
    match place.ledger {
        Some(ledger) if ledger != settings.ledger => {
            let (topic, at) = (&place.topic, settings.place());
            let text = format!(
                "the topic `{topic}` at {at} was made with `ledger={ledger}`, and this URL says `ledger={}`: say the same, or use \
                 another `prefix`",
                settings.ledger
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
        _ => Ok(()),
    }
}

/// Makes what is missing. Returns whether that is all: somebody else may have been faster.
async fn make(store: &Store, mut plan: Plan) -> Result<bool> {
    let prefix = &store.link.settings.prefix;
    // Topics of earlier versions do not say whether they have a ledger: the first who comes does, unless there is one.
    for (name, place) in plan.there.iter().filter(|(_, place)| place.is_there() && place.ledger.is_none()) {
        let as_it_is = Wanted { keeps: place.keeps, is_declared: place.is_declared, subscriptions: vec![] };
        plan.missing.entry(name.clone()).or_insert(as_it_is);
    }
    for (name, wanted) in plan.missing {
        let place = &plan.there[&name];
        if place.is_there() && !wanted.subscriptions.is_empty() {
            // Whoever subscribes now does not get what was due before.
            promote_all(store, &name).await?;
        }
        // The name first, so that whatever the topic holds can be found.
        store.link.query(redis::cmd("SADD").arg(keys::topics(prefix)).arg(&*name)).await?;
        let is_first = place.subscriptions.is_empty() && (place.keeps || wanted.keeps);
        let adopter = wanted.subscriptions.first().filter(|first| is_first && first.name != name);
        let heir = adopter.map_or(&name, |first| &first.name);
        let mut all = vec![
            keys::of_topic(prefix, &name).swap_remove(0),
            keys::of_slot(prefix, &place.base).swap_remove(6),
        ];
        all.extend(keys::of_subscription(prefix, &name, &name));
        all.extend(keys::of_subscription(prefix, &name, heir));
        let answer = store
            .link
            .run(&DECLARE, |command| {
                command
                    .arg(all.len())
                    .arg(&all)
                    .arg(&*name)
                    .arg(place.version)
                    .arg(u8::from(wanted.keeps))
                    .arg(u8::from(wanted.is_declared))
                    .arg(adopter.map_or("", |first| &first.name))
                    .arg(LAYOUT)
                    .arg(u8::from(store.link.settings.ledger));
                for subscription in &wanted.subscriptions {
                    command.arg(&*subscription.name).arg(written(subscription));
                }
            })
            .await?;
        let is_there = redis::cmd("HEXISTS").arg(&all[0]).arg("version").clone();
        store.confirm(&all[0], &is_there, |is_there| crate::places::number(&is_there) == 1).await?;
        store.places.forget(std::slice::from_ref(&name));
        if text(&answer) != "ok" {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn promote_all(store: &Store, topic: &Text) -> Result<()> {
    loop {
        let answer =
            store.run(&PROMOTE, std::slice::from_ref(topic), |_, command| _ = command.arg(200)).await?;
        if answer.first().map_or(0, crate::places::number) == 0 {
            return Ok(());
        }
    }
}
