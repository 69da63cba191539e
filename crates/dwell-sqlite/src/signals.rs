//! Wake-up of receivers, which sleep until a message is ready for their subscription.

use crate::tx::Ours;
use dwell_core::{SettingChanges, Text};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Receivers to wake once the change is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    /// A message is ready: wakes one receiver, which wakes the next one if messages are left.
    One,
    /// A timer has become earlier: wakes every waiting receiver.
    All,
}

/// Actions to take once the change is committed.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) places: BTreeMap<i64, Signal>,
    /// Set if another process has changed the file: all receivers look again.
    pub(crate) everyone: bool,
    /// Consumers that were opened, with their numbers.
    pub(crate) opened: Vec<(i64, Ours)>,
    /// Topics that dropped a message for the first time.
    pub(crate) warnings: Vec<Text>,
    /// Settings that were changed.
    pub(crate) changes: Vec<SettingChanges>,
}

/// Receivers of each subscription, by its place.
#[derive(Default)]
pub(crate) struct Signals(Mutex<HashMap<i64, Arc<Notify>>>);

impl Signals {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, place: i64) -> Arc<Notify> {
        self.lock().entry(place).or_default().clone()
    }

    /// Wakes all receivers, so that they look again.
    pub(crate) fn wake_everyone(&self) {
        self.lock().values().for_each(|receivers| receivers.notify_waiters());
    }

    pub(crate) fn run(&self, after: After) {
        if after.everyone {
            self.wake_everyone();
        }
        if !after.places.is_empty() {
            let receivers = self.lock();
            for (place, signal) in after.places {
                match (receivers.get(&place), signal) {
                    (None, _) => {}
                    (Some(receivers), Signal::One) => receivers.notify_one(),
                    (Some(receivers), Signal::All) => receivers.notify_waiters(),
                }
            }
        }
        after.changes.iter().for_each(SettingChanges::log);
        for topic in after.warnings {
            tracing::warn!(
                %topic,
                "message discarded, because its topic has no subscription; this is logged once per topic"
            );
        }
    }
}
