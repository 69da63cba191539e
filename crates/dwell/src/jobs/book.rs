//! What a bus knows about jobs: which types it works on, with which settings, and who claims them.

use super::{MAX_RESULT, check_kind, claim::Claimer, subscription_of, topic_of};
use crate::config::Config;
use bytes::Bytes;
use dwell_core::{Error, ErrorKind, OnMissing, Result, Text, Topic};
use dwell_engine::{Engine, SubscriptionSettings};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

/// Whether a payload can be read, by its content type and body.
pub(crate) type Check = fn(&str, &Bytes) -> Result<(), String>;

/// What a bus knows about jobs.
#[derive(Default)]
pub(crate) struct Book {
    max_result: Option<usize>,
    config: Config,
    /// The types that have a handler here.
    handled: BTreeMap<Text, Handled>,
    /// Those of them that were sent as commands.
    sent: Mutex<BTreeSet<Text>>,
    /// Topics that were seen to be there.
    there: Mutex<BTreeSet<Text>>,
    claimers: tokio::sync::Mutex<BTreeMap<Text, Arc<Claimer>>>,
}

/// A type that has a handler here.
pub(crate) struct Handled {
    pub(crate) settings: SubscriptionSettings,
    pub(crate) check: Check,
}

impl Book {
    pub(crate) fn new(
        max_result: Option<usize>,
        config: Config,
        handled: impl IntoIterator<Item = (Text, Handled)>,
    ) -> Self {
        let handled = handled.into_iter().collect();
        Self { max_result, config, handled, ..Self::default() }
    }

    pub(crate) fn max_result(&self) -> usize {
        self.max_result.unwrap_or(MAX_RESULT)
    }

    /// Whether jobs of this type have a handler here.
    pub(crate) fn works_on(&self, kind: &str) -> bool {
        self.handled.contains_key(kind)
    }

    /// Whether a command of this type is sent for the first time.
    pub(crate) fn is_first_sent(&self, kind: &str) -> bool {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).insert(kind.into())
    }

    /// The types that have a handler here.
    pub(super) fn kinds(&self) -> impl Iterator<Item = &Text> {
        self.handled.keys()
    }

    /// The type and its topic, made once for those that have a handler here. An error if it can be no type.
    pub(super) fn names(&self, kind: &str) -> (Text, Result<Text>) {
        match self.handled.get_key_value(kind) {
            Some((kind, handled)) => (kind.clone(), Ok(handled.settings.topic.clone())),
            None => (kind.into(), check_kind(kind).map(|()| topic_of(kind))),
        }
    }

    /// Whether no job of another type was submitted or handled here.
    pub(super) fn knows_at_most(&self, kind: &str) -> bool {
        let topic = topic_of(kind);
        let there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        self.handled.keys().all(|known| **known == *kind) && there.iter().all(|known| *known == topic)
    }

    /// Whether a payload can be read by the handler of this type, where there is one here.
    pub(super) fn check(&self, kind: &str, content_type: &str, payload: &Bytes) -> Result<()> {
        let Some(handled) = self.handled.get(kind) else { return Ok(()) };
        (handled.check)(content_type, payload).map_err(|why| {
            Error::new(
                ErrorKind::Invalid,
                format!("the payload of a job of type `{kind}` does not fit: {why}"),
            )
        })
    }

    /// How many failures of this type are tried again, where it is worked on here.
    pub(super) fn max_retries(&self, kind: &str) -> Option<u32> {
        let handled = self.handled.get(kind)?;
        Some(handled.settings.retry_policies().of(kind).max_retries)
    }

    /// The settings of a type: its handler's, else the defaults with what the configuration says about it.
    fn settings(&self, kind: &str) -> Result<SubscriptionSettings> {
        if let Some(handled) = self.handled.get(kind) {
            return Ok(handled.settings.clone());
        }
        let mut settings = subscription_of(kind).settings;
        settings.topic = settings.name.clone();
        settings.command = true;
        settings.retry = self.config.retry.policy;
        settings.overrides = self.config.overrides();
        match self.config.overlay(&settings.topic, &settings.name) {
            Some(overlay) => overlay.apply(settings),
            None => Ok(settings),
        }
    }

    /// Makes sure that the queue of a type is there, so that what is submitted is kept while nobody works on it.
    pub(super) async fn provision(&self, engine: &Engine, kind: &str, on_missing: OnMissing) -> Result<()> {
        if self.handled.contains_key(kind) {
            return Ok(());
        }
        let topic = topic_of(kind);
        let there = || self.there.lock().unwrap_or_else(PoisonError::into_inner);
        if there().contains(&topic) {
            return Ok(());
        }
        engine.provision(&[Topic::named(topic.clone()).keep()], on_missing).await?;
        there().insert(topic);
        Ok(())
    }

    /// Whoever claims jobs of this type for us.
    pub(super) async fn claimer(&self, engine: &Engine, kind: &str) -> Result<Arc<Claimer>> {
        let mut claimers = self.claimers.lock().await;
        if let Some(claimer) = claimers.get(kind) {
            return Ok(claimer.clone());
        }
        let claimer = Arc::new(Claimer::open(engine, self.settings(kind)?).await?);
        claimers.insert(kind.into(), claimer.clone());
        Ok(claimer)
    }
}
