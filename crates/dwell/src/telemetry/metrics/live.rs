//! What is counted while it happens.

use super::histogram::Histogram;
use dwell_core::{Envelope, Outcome, Sent, Text};
use dwell_engine::{Decided, Observer};
use std::{
    collections::BTreeMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The outcomes that a delivery can have here, by their names.
pub(super) const OUTCOMES: [(Outcome, &str); 9] = [
    (Outcome::Handled, "handled"),
    (Outcome::Failed, "failed"),
    (Outcome::Deferred, "deferred"),
    (Outcome::Released, "released"),
    (Outcome::Rejected, "rejected"),
    (Outcome::Invalid, "invalid"),
    (Outcome::Exhausted, "exhausted"),
    (Outcome::Poison, "poison"),
    (Outcome::Skipped, "skipped"),
];

/// What was counted for one subscription.
#[derive(Debug, Default)]
pub(super) struct Series {
    outcomes: [AtomicU64; OUTCOMES.len()],
    dead: AtomicU64,
    pub(super) lateness: Histogram,
    pub(super) took: Histogram,
}

impl Series {
    /// How many deliveries had each outcome.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES.iter().zip(&self.outcomes).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }

    pub(super) fn dead(&self) -> u64 {
        self.dead.load(Relaxed)
    }
}

/// Everything that was counted. A subscription is looked up by its two names, without an allocation; it is made when it
/// is first seen, and there are as many as the program has.
#[derive(Debug, Default)]
pub(super) struct Live {
    published: RwLock<BTreeMap<Text, AtomicU64>>,
    subscriptions: RwLock<BTreeMap<Text, BTreeMap<Text, Series>>>,
}

impl Live {
    /// The series of this subscription.
    pub(super) fn series<T>(&self, topic: &str, subscription: &str, use_it: impl FnOnce(&Series) -> T) -> T {
        let known = self.subscriptions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.get(topic).and_then(|topic| topic.get(subscription)) {
            return use_it(series);
        }
        drop(known);
        let mut known = self.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        use_it(known.entry(topic.into()).or_default().entry(subscription.into()).or_default())
    }

    fn count_published(&self, topic: &Text) {
        let known = self.published.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get(topic) {
            count.fetch_add(1, Relaxed);
            return;
        }
        drop(known);
        let mut known = self.published.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(topic.clone()).or_default().fetch_add(1, Relaxed);
    }

    /// How many messages were published, by topic.
    pub(super) fn published(&self) -> Vec<(Text, u64)> {
        let known = self.published.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(topic, count)| (topic.clone(), count.load(Relaxed))).collect()
    }

    /// Shows every subscription, in order.
    pub(super) fn each<E>(
        &self,
        mut show: impl FnMut(&str, &str, &Series) -> Result<(), E>,
    ) -> Result<(), E> {
        let known = self.subscriptions.read().unwrap_or_else(PoisonError::into_inner);
        for (topic, subscriptions) in &*known {
            for (subscription, series) in subscriptions {
                show(topic, subscription, series)?;
            }
        }
        Ok(())
    }
}

impl Observer for Live {
    fn sent(&self, envelope: &Envelope, sent: &Sent) {
        if !sent.duplicate {
            self.count_published(envelope.to.topic_name());
        }
    }

    fn decided(&self, decided: &Decided<'_>) {
        self.series(decided.topic, decided.subscription, |series| {
            let outcome = decided.settle.note.outcome;
            if let Some(at) = OUTCOMES.iter().position(|(known, _)| *known == outcome) {
                series.outcomes[at].fetch_add(1, Relaxed);
            }
            if decided.dead {
                series.dead.fetch_add(1, Relaxed);
            }
            if let Some(ran) = decided.ran {
                series.took.observe(ran.took);
                if let Some(late) = ran.late {
                    series.lateness.observe(late);
                }
            }
        });
    }
}
