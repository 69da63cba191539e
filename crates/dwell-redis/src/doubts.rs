//! Settlements of which nobody knows whether they were done: when they are asked for again, they say which call they were part of.

use crate::calls::{Before, Call};
use dwell_core::Text;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// More are not kept: those who hold the oldest have had their time.
const MOST: usize = 10_000;

/// Those of one consumer, by the fences of what it holds.
#[derive(Default)]
pub(crate) struct Doubts(Mutex<BTreeMap<u64, Before>>);

impl Doubts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Before>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls that may have settled these. They are not kept in mind any more.
    pub(crate) fn take(&self, fences: impl Iterator<Item = u64>) -> Vec<Option<Before>> {
        let mut kept = self.lock();
        fences.map(|fence| kept.remove(&fence)).collect()
    }

    /// Nobody knows whether these are settled, by a call before, or by this one. Without either, it is known.
    pub(crate) fn keep(
        &self,
        settlements: impl Iterator<Item = (u64, Option<Before>)>,
        call: Option<Call>,
        topic: &Text,
    ) {
        let mut now_in = call.map(|call| Before::all(call, topic));
        let mut kept = self.lock();
        for (fence, before) in settlements {
            let now_in = now_in.as_mut().and_then(Iterator::next);
            if let Some(before) = before.or(now_in) {
                kept.insert(fence, before);
            }
        }
        while kept.len() > MOST {
            kept.pop_first();
        }
    }
}
