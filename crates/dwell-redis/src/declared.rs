//! Declarations of this link, to be provisioned again when the server has lost them: for example
//! after `FLUSHALL`, or after a restart of a server without persistence.

use crate::{
    keys,
    places::{Place, Places},
    provision::create_missing,
    store::Store,
};
use dwell_core::{BoxFuture, Error, ErrorKind, Result, Subscription, Text, Topic, Unclaimed};
use futures_util::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Number of topics that are restored at the same time.
const AT_ONCE: usize = 16;

#[derive(Default)]
pub(crate) struct Declared {
    parts: Mutex<Parts>,
    /// Number of restores that have started.
    started: AtomicU64,
    /// Held during a restore.
    last: tokio::sync::Mutex<LastRestore>,
}

/// The last restore that ended.
#[derive(Default)]
struct LastRestore {
    number: u64,
    error: Option<Error>,
}

#[derive(Clone, Default)]
struct Parts {
    /// Topics that were declared explicitly.
    topics: BTreeMap<Text, Topic>,
    /// Subscriptions by topic and name.
    subscriptions: BTreeMap<Text, BTreeMap<Text, Subscription>>,
}

/// Forgets all topics when it is dropped, unless the restore succeeded: topics that were loaded
/// before the restore failed may lack subscriptions, and callers must notice that again.
struct Unfinished<'a> {
    places: &'a Places,
    has_succeeded: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.has_succeeded {
            self.places.forget_all();
        }
    }
}

impl Parts {
    fn has(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
            || self.subscriptions.contains_key(topic)
            || self.channels().any(|channel| **channel == *topic)
    }

    /// Adds a vanished topic as it was last known: with the subscriptions of other programs, so
    /// that they miss no message until they notice, and with settings that are newer than those
    /// declared here.
    fn add_last_known(&mut self, place: &Place) {
        let topic = &place.topic;
        if place.is_declared {
            let unclaimed = if place.keeps { Unclaimed::Keep } else { Unclaimed::Discard };
            self.topics
                .insert(topic.clone(), Topic { unclaimed: Some(unclaimed), ..Topic::named(topic.clone()) });
        }
        self.subscriptions.entry(topic.clone()).or_default().extend(place.subscriptions.clone());
    }

    /// Topics of dead letters and of invalid messages.
    fn channels(&self) -> impl Iterator<Item = &Text> {
        let subscriptions = self.subscriptions.values().flat_map(BTreeMap::values);
        subscriptions.flat_map(Subscription::channels).map(|channel| channel.topic_name())
    }

    fn names(&self) -> BTreeSet<Text> {
        self.topics.keys().chain(self.subscriptions.keys()).chain(self.channels()).cloned().collect()
    }

    /// The declarations of one topic. A channel that nobody declared by itself keeps its messages.
    fn of(&self, topic: &Text) -> (Topic, Vec<Subscription>) {
        let subscriptions = self.subscriptions.get(topic).into_iter().flat_map(BTreeMap::values);
        let subscriptions: Vec<_> = subscriptions.cloned().collect();
        let undeclared = || match subscriptions.is_empty() {
            true => Topic::named(topic.clone()).keep(),
            false => Topic::named(topic.clone()),
        };
        (self.topics.get(topic).cloned().unwrap_or_else(undeclared), subscriptions)
    }
}

impl Declared {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds declarations that exist on the server.
    pub(crate) fn add(&self, topics: &[Topic], subscriptions: &[Subscription]) {
        let mut parts = self.lock();
        for topic in topics {
            // A declaration without a setting does not remove the setting.
            let known = parts.topics.entry(topic.name.clone()).or_insert_with(|| topic.clone());
            known.unclaimed = topic.unclaimed.or(known.unclaimed);
        }
        for of in subscriptions {
            let subscriptions = parts.subscriptions.entry(of.topic.clone()).or_default();
            subscriptions.insert(of.name.clone(), of.clone());
        }
    }

    /// Whether this topic, or a subscription of it, was declared and is missing.
    fn is_missing(&self, place: &Place) -> bool {
        let parts = self.lock();
        let mut subscriptions = parts.subscriptions.get(&place.topic).into_iter().flatten();
        (!place.is_there() && parts.has(&place.topic))
            || subscriptions.any(|(name, _)| !place.subscriptions.contains_key(name))
    }
}

impl Store {
    /// Returns a topic; `NotFound` if it does not exist. A topic that was declared here and has
    /// vanished is provisioned again.
    pub(crate) async fn place(&self, topic: &Text) -> Result<Arc<Place>> {
        if let Some(place) = self.places.known(topic) {
            return Ok(place);
        }
        let found = self.places.get(&self.link, topic).await;
        // Buckets exist as long as their topic.
        let base = topic.split_once('#').map_or(&**topic, |(of, _)| of);
        let is_missing = match &found {
            Ok(place) if base == &**topic => self.declared.is_missing(place),
            Err(error) if error.kind() == ErrorKind::NotFound => self.declared.lock().has(base),
            _ => false,
        };
        if !is_missing {
            return found;
        }
        let restored = self.restore().await;
        // Another topic may be the one that could not be restored.
        match self.places.get(&self.link, topic).await {
            Ok(place) if base != &**topic || !self.declared.is_missing(&place) => Ok(place),
            found => restored.and(found),
        }
    }

    /// Returns the names of all topics.
    pub(crate) async fn names(&self) -> Result<Vec<Text>> {
        let names = self.places.names(&self.link).await?;
        let declared = self.declared.lock().names();
        if declared.iter().all(|declared| names.binary_search(declared).is_ok()) {
            return Ok(names);
        }
        let restored = self.restore().await;
        let names = self.places.names(&self.link).await?;
        // The topics that exist are served, also if others cannot be restored.
        if names.is_empty() { restored.map(|()| names) } else { Ok(names) }
    }

    /// Creates what was declared here and has vanished, and changes nothing that exists. Callers
    /// that notice the same loss share one restore.
    fn restore(&self) -> BoxFuture<'_, Result<()>> {
        let noticed = self.declared.started.load(Ordering::SeqCst);
        Box::pin(async move {
            let mut last = self.declared.last.lock().await;
            if last.number <= noticed {
                let number = self.declared.started.fetch_add(1, Ordering::SeqCst) + 1;
                let mut unfinished = Unfinished { places: &self.places, has_succeeded: false };
                let outcome = self.restore_missing().await;
                unfinished.has_succeeded = outcome.is_ok();
                *last = LastRestore { number, error: outcome.err() };
            }
            last.error.as_ref().map_or(Ok(()), |error| Err(error.again()))
        })
    }

    /// Restores each topic by itself, so that one that cannot be restored holds up no other.
    /// Returns the first error.
    async fn restore_missing(&self) -> Result<()> {
        let mut parts = self.declared.lock().clone();
        let names = self.places.names(&self.link).await?;
        let mut missing: BTreeSet<_> =
            parts.names().into_iter().filter(|name| names.binary_search(name).is_err()).collect();
        let all: Vec<_> = parts.names().into_iter().collect();
        for some in all.chunks(AT_ONCE) {
            let places = some.iter().map(|topic| self.places.load(&self.link, topic));
            for (topic, place) in some.iter().zip(join_all(places).await) {
                // A topic that cannot be loaded gets its error below.
                let is_missing = place.as_ref().map_or(true, |place| self.declared.is_missing(place));
                if is_missing {
                    missing.insert(topic.clone());
                }
                if place.is_ok_and(|place| !place.is_there())
                    && let Some(last) = self.places.last_known(topic)
                {
                    parts.add_last_known(&last);
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<_> = missing.into_iter().collect();
        tracing::error!(
            server = %self.link.settings.place(),
            topics = %missing.join(", "),
            "topics vanished from the server, and their messages with them; provisioning them again"
        );
        // The name of an existing topic may be missing from the list of names.
        let known = keys::topics(&self.link.settings.prefix);
        let names: Vec<_> = missing.iter().map(|topic| &**topic).collect();
        self.link.query(redis::cmd("SADD").arg(known).arg(names)).await?;
        let mut outcome = Ok(());
        for some in missing.chunks(AT_ONCE) {
            let restores = some.iter().map(|topic| {
                let (topic, subscriptions) = parts.of(topic);
                async move { create_missing(self, &[topic], &subscriptions).await }
            });
            for (topic, restored) in some.iter().zip(join_all(restores).await) {
                if let Err(error) = &restored {
                    tracing::error!(%error, topic = &**topic, "topic could not be provisioned again");
                }
                outcome = outcome.and(restored);
            }
        }
        outcome
    }
}
