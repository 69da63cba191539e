//! Declarations of this link, to be provisioned again when the server has lost them: for example
//! after `FLUSHALL`, or after a restart of a server without persistence.

use crate::{keys, places::Place, provision::create_missing, store::Store};
use dwell_core::{BoxFuture, ErrorKind, Result, Subscription, Text, Topic, Unclaimed};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

#[derive(Default)]
pub(crate) struct Declared {
    parts: Mutex<Parts>,
    /// Number of restores that have started.
    started: AtomicU64,
    /// Number of the last successful restore. Locked during a restore.
    restored: tokio::sync::Mutex<u64>,
}

#[derive(Clone, Default)]
struct Parts {
    /// Topics that were declared explicitly.
    topics: BTreeMap<Text, Topic>,
    /// Subscriptions by topic and name.
    subscriptions: BTreeMap<Text, BTreeMap<Text, Subscription>>,
    /// Topics of dead letters and of invalid messages.
    channels: BTreeMap<Text, ()>,
}

impl Parts {
    fn has(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
            || self.subscriptions.contains_key(topic)
            || self.channels.contains_key(topic)
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

    fn names(&self) -> impl Iterator<Item = &Text> {
        self.topics.keys().chain(self.subscriptions.keys()).chain(self.channels.keys())
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
            parts.channels.extend(of.channels().map(|channel| (channel.topic_name().clone(), ())));
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
        self.restore().await?;
        self.places.get(&self.link, topic).await
    }

    /// Returns the names of all topics.
    pub(crate) async fn names(&self) -> Result<Vec<Text>> {
        let names = self.places.names(&self.link).await?;
        let is_missing = self.declared.lock().names().any(|declared| names.binary_search(declared).is_err());
        if !is_missing {
            return Ok(names);
        }
        self.restore().await?;
        self.places.names(&self.link).await
    }

    /// Creates what was declared here and has vanished, and changes nothing that exists. Callers
    /// that notice the same loss share one restore.
    fn restore(&self) -> BoxFuture<'_, Result<()>> {
        let noticed = self.declared.started.load(Ordering::SeqCst);
        Box::pin(async move {
            let mut restored = self.declared.restored.lock().await;
            if *restored > noticed {
                return Ok(());
            }
            let number = self.declared.started.fetch_add(1, Ordering::SeqCst) + 1;
            self.restore_missing().await?;
            *restored = number;
            Ok(())
        })
    }

    async fn restore_missing(&self) -> Result<()> {
        let mut parts = self.declared.lock().clone();
        let names = self.places.names(&self.link).await?;
        let mut missing: Vec<_> =
            parts.names().filter(|name| names.binary_search(name).is_err()).cloned().collect();
        for topic in parts.clone().names() {
            let place = self.places.load(&self.link, topic).await?;
            if self.declared.is_missing(&place) && !missing.contains(topic) {
                missing.push(topic.clone());
            }
            if !place.is_there()
                && let Some(last) = self.places.last_known(topic)
            {
                parts.add_last_known(&last);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        tracing::error!(
            server = %self.link.settings.place(),
            topics = %missing.join(", "),
            "topics vanished from the server, and their messages with them; provisioning them again"
        );
        // The name of an existing topic may be missing from the list of names.
        let known = keys::topics(&self.link.settings.prefix);
        let names: Vec<_> = missing.iter().map(|topic| &**topic).collect();
        self.link.query(redis::cmd("SADD").arg(known).arg(names)).await?;
        let topics: Vec<_> = parts.topics.into_values().collect();
        let subscriptions: Vec<_> =
            parts.subscriptions.into_values().flat_map(BTreeMap::into_values).collect();
        create_missing(self, &topics, &subscriptions).await
    }
}
