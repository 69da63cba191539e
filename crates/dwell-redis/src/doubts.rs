//! Settlements with an unknown outcome. When they are repeated, they name the earlier call.

use crate::calls::{Before, Call};
use dwell_core::Text;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Maximum number. The oldest are dropped first.
const MOST: usize = 10_000;

/// Settlements of one consumer, by the fences of its deliveries.
#[derive(Default)]
pub(crate) struct Doubts(Mutex<BTreeMap<u64, Before>>);

impl Doubts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Before>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns and removes the calls that may have settled these deliveries.
    pub(crate) fn take(&self, fences: impl Iterator<Item = u64>) -> Vec<Option<Before>> {
        let mut kept = self.lock();
        fences.map(|fence| kept.remove(&fence)).collect()
    }

    /// Remembers that the outcome of these settlements is unknown: of an earlier call, or of this
    /// one. Without either, the outcome is known.
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
