//! Provisioning of topics and subscriptions. The whole request is checked before anything is
//! created.

use crate::{
    keys,
    places::{LAYOUT, MAKE_IT, Place, list, number, text, write_context, written},
    script::{DECLARE, PROMOTE},
    store::Store,
};
use dwell_core::{
    Address, Error, ErrorKind, OnMissing, Result, SettingChanges, Subscription, Text, Topic, Unclaimed,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// Requested settings of a topic.
#[derive(Clone, Default)]
struct Wanted {
    keeps: bool,
    is_declared: bool,
    /// New subscriptions, and existing ones with changed settings.
    subscriptions: Vec<Subscription>,
    changes: Vec<SettingChanges>,
}

/// Existing, missing and changing items by topic.
struct Plan {
    there: BTreeMap<Text, Arc<Place>>,
    missing: BTreeMap<Text, Wanted>,
    existing: Existing,
}

/// How to handle topics and subscriptions that exist with other settings than requested.
#[derive(Clone, Copy)]
enum Existing {
    Change(OnMissing),
    Leave,
}

/// Maximum number of attempts when another client is faster.
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
    let existing = Existing::Change(on_missing);
    if on_missing == OnMissing::Validate {
        let plan = Plan::of(store, topics, subscriptions, existing).await?;
        return plan.is_all_there(&store.link.settings.place());
    }
    create(store, topics, subscriptions, existing).await?;
    store.declared.add(topics, subscriptions);
    Ok(())
}

/// Creates those of these topics and subscriptions that do not exist. Settings of existing ones
/// stay as they are.
pub(crate) async fn create_missing(
    store: &Store,
    topics: &[Topic],
    subscriptions: &[Subscription],
) -> Result<()> {
    store.open()?;
    create(store, topics, subscriptions, Existing::Leave).await
}

async fn create(
    store: &Store,
    topics: &[Topic],
    subscriptions: &[Subscription],
    existing: Existing,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        if make(store, Plan::of(store, topics, subscriptions, existing).await?).await? {
            return Ok(());
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "other clients change the same topics at the same time: try again",
    ))
}

impl Plan {
    async fn of(
        store: &Store,
        topics: &[Topic],
        subscriptions: &[Subscription],
        existing: Existing,
    ) -> Result<Self> {
        let mut names: Vec<Text> = topics.iter().map(|topic| topic.name.clone()).collect();
        for subscription in subscriptions {
            names.push(subscription.topic.clone());
            names.extend(subscription.channels().map(|channel| channel.topic_name().clone()));
        }
        let mut plan = Self { there: BTreeMap::new(), missing: BTreeMap::new(), existing };
        for name in names {
            if let Entry::Vacant(vacant) = plan.there.entry(name.clone()) {
                vacant.insert(store.places.load(&store.link, &name).await?);
            }
        }
        plan.there.values().try_for_each(|place| check_ledger(store, place))?;
        for topic in Topic::explicit_first(topics) {
            plan.declare(topic)?;
        }
        for subscription in subscriptions {
            plan.subscribe(subscription, &Topic::named(subscription.topic.clone()))?;
        }
        for channel in subscriptions.iter().flat_map(Subscription::channels) {
            let topic = Topic::named(channel.topic_name().clone()).keep();
            match channel {
                Address::Topic(_) => plan.add(&topic),
                Address::Subscription { topic: of, name } => {
                    if plan.existing(of, name).is_none() && plan.planned(of, name).is_none() {
                        plan.subscribe(&Subscription::new(of.clone(), name.clone()), &topic)?;
                    }
                }
            }
        }
        Ok(plan)
    }

    /// Returns how a topic of this request, or else an existing one, handles unclaimed messages.
    fn unclaimed(&self, name: &Text) -> Option<Unclaimed> {
        let planned = self.missing.get(name).map(|wanted| wanted.keeps);
        let existing = self.there.get(name).filter(|place| place.is_there()).map(|place| place.keeps);
        let keeps = planned.or(existing)?;
        Some(if keeps { Unclaimed::Keep } else { Unclaimed::Discard })
    }

    fn declare(&mut self, topic: &Topic) -> Result<()> {
        let Some(existing) = self.unclaimed(&topic.name) else {
            self.add(topic);
            return Ok(());
        };
        let Existing::Change(on_missing) = self.existing else { return Ok(()) };
        let changes = topic.changes(existing);
        if changes.is_empty() {
            return Ok(());
        }
        if self.missing.contains_key(&topic.name) {
            changes.check_same_request()?;
        }
        changes.check(on_missing)?;
        let wanted = self.wanted(&topic.name);
        (wanted.keeps, wanted.is_declared) = (topic.unclaimed_or_default() == Unclaimed::Keep, true);
        wanted.changes.push(changes);
        Ok(())
    }

    /// Adds a topic that another part of the request needs.
    fn add(&mut self, topic: &Topic) {
        if self.unclaimed(&topic.name).is_none() {
            let wanted = self.missing.entry(topic.name.clone()).or_default();
            wanted.keeps = topic.unclaimed_or_default() == Unclaimed::Keep;
            wanted.is_declared = topic.unclaimed.is_some();
        }
    }

    /// Returns the request for a topic, which is initially unchanged.
    fn wanted(&mut self, topic: &Text) -> &mut Wanted {
        let place = self.there.get(topic);
        self.missing.entry(topic.clone()).or_insert_with(|| Wanted {
            keeps: place.is_some_and(|place| place.keeps),
            is_declared: place.is_some_and(|place| place.is_declared),
            ..Wanted::default()
        })
    }

    fn subscribe(&mut self, wanted: &Subscription, topic: &Topic) -> Result<()> {
        if let Some(planned) = self.planned(&wanted.topic, &wanted.name) {
            return planned.changes(wanted).check_same_request();
        }
        if let Some(existing) = self.existing(&wanted.topic, &wanted.name) {
            let Existing::Change(on_missing) = self.existing else { return Ok(()) };
            let changes = existing.changes(wanted);
            changes.check(on_missing)?;
            if !changes.is_empty() {
                let planned = self.wanted(&wanted.topic);
                planned.subscriptions.push(wanted.clone());
                planned.changes.push(changes);
            }
            return Ok(());
        }
        self.add(topic);
        self.wanted(&wanted.topic).subscriptions.push(wanted.clone());
        Ok(())
    }

    /// Returns the settings of an existing subscription.
    fn existing(&self, topic: &Text, name: &Text) -> Option<&Subscription> {
        self.there.get(topic).and_then(|place| place.subscriptions.get(name))
    }

    /// Returns the settings that this request gives to a subscription.
    fn planned(&self, topic: &Text, name: &Text) -> Option<&Subscription> {
        let mut planned = self.missing.get(topic).into_iter().flat_map(|wanted| &wanted.subscriptions);
        planned.find(|planned| planned.name == *name)
    }

    /// Returns an error that names everything that is missing, if anything is.
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
        let text = format!("missing at {at}: {}; {MAKE_IT}", missing.join(", "));
        Err(Error::new(ErrorKind::NotFound, text))
    }
}

/// Checks that the `ledger` setting equals that of the topic, which is the same for all clients.
fn check_ledger(store: &Store, place: &Place) -> Result<()> {
    let settings = &store.link.settings;
    match place.ledger {
        Some(ledger) if ledger != settings.ledger => {
            let (topic, at) = (&place.topic, settings.place());
            let text = format!(
                "topic `{topic}` at {at} was created with `ledger={ledger}`, but this URL sets `ledger={}`: use the same value, or \
                 another `prefix`",
                settings.ledger
            );
            Err(Error::new(ErrorKind::Conflict, text))
        }
        _ => Ok(()),
    }
}

/// Creates what is missing. Returns whether that succeeded; another client may have been faster.
async fn make(store: &Store, mut plan: Plan) -> Result<bool> {
    let prefix = &store.link.settings.prefix;
    // Topics of earlier versions do not record whether they have a ledger. The first client
    // decides, unless records exist.
    for (name, place) in plan.there.iter().filter(|(_, place)| place.is_there() && place.ledger.is_none()) {
        let as_it_is = Wanted { keeps: place.keeps, is_declared: place.is_declared, ..Wanted::default() };
        plan.missing.entry(name.clone()).or_insert(as_it_is);
    }
    for (name, wanted) in plan.missing {
        let place = &plan.there[&name];
        let is_new = |of: &Subscription| !place.subscriptions.contains_key(&of.name);
        if place.is_there() && wanted.subscriptions.iter().any(is_new) {
            // A new subscription does not receive messages that were due before.
            promote_all(store, &name).await?;
        }
        // The name first, so that everything the topic holds can be found.
        store.link.query(redis::cmd("SADD").arg(keys::topics(prefix)).arg(&*name)).await?;
        let is_first = place.subscriptions.is_empty() && (place.has_kept || wanted.keeps);
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
        store.confirm(&all[0], &is_there, |is_there| number(&is_there) == 1).await?;
        store.places.forget(std::slice::from_ref(&name));
        if text(&answer) != "ok" {
            return Ok(false);
        }
        wanted.changes.iter().for_each(SettingChanges::log);
    }
    Ok(true)
}

/// Does not use `Store::run`, which provisions vanished topics, because this is part of
/// provisioning.
async fn promote_all(store: &Store, topic: &Text) -> Result<()> {
    loop {
        let places = [store.places.get(&store.link, topic).await?];
        let answer = store.link.run(&PROMOTE, |command| {
            write_context(&store.link, &store.calls.name, None, &places, command);
            command.arg(200);
        });
        let answer = list(answer.await?);
        match answer.first().map(text).as_deref() {
            Some("reload") => store.places.forget(std::slice::from_ref(topic)),
            _ if answer.get(1).map_or(0, number) == 0 => return Ok(()),
            _ => {}
        }
    }
}
