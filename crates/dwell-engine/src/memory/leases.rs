//! What is in consumers' hands, and until when.

use super::item::Item;
use crate::planted::{Bug, planted};
use dwell_core::{LeaseId, Text};
use std::time::Duration;

/// One message in a consumer's hands.
pub(super) struct Lease {
    /// Never the same twice: a receipt of an earlier delivery does not match.
    fence: u64,
    /// When it runs out, in monotonic time: setting the wall clock does not lose a lease.
    pub(super) until: Duration,
    pub(super) consumer: u64,
    /// Name that the caller of `receive` gave.
    pub(super) worker: Option<Text>,
    pub(super) item: Item,
}

/// A slab: the position of a lease is its index, and nothing is looked up in a map.
#[derive(Default)]
pub(super) struct Leases {
    slots: Vec<Option<Lease>>,
    free: Vec<usize>,
    /// No lease runs out before this; `None` if none was given out since all had run out. A bound, and not exact, so
    /// that settling a lease costs nothing here. Receivers that wait know of it: see [`Leases::put`].
    earliest: Option<Duration>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Leases `item` to `consumer`, for `worker`. Returns its position.
    pub(super) fn put(
        &mut self,
        fence: u64,
        until: Duration,
        consumer: u64,
        worker: Option<Text>,
        item: Item,
    ) -> u64 {
        let lease = Some(Lease { fence, until, consumer, worker, item });
        match self.free.pop() {
            Some(index) => {
                self.slots[index] = lease;
                index as u64
            }
            None => {
                self.slots.push(lease);
                self.slots.len() as u64 - 1
            }
        }
    }

    /// A lease runs out at `until`. Returns whether that is earlier than all who wait have been told.
    pub(super) fn expect(&mut self, until: Duration) -> bool {
        let is_earlier = self.earliest.is_none_or(|earliest| until < earliest);
        if is_earlier {
            self.earliest = Some(until);
        }
        is_earlier
    }

    /// Before this, none runs out.
    pub(super) fn earliest(&self) -> Option<Duration> {
        self.earliest
    }

    /// The lease of this receipt, unless it was lost.
    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        let slot = self.slots.get_mut(usize::try_from(id.position).ok()?)?;
        slot.as_mut().filter(|lease| lease.fence == id.fence || planted(Bug::StaleReceiptAccepted))
    }

    /// Takes the message of this receipt back, unless it was lost.
    pub(super) fn take(&mut self, id: LeaseId) -> Option<Item> {
        self.get_mut(id)?;
        let index = id.position as usize;
        self.free.push(index);
        self.slots[index].take().map(|lease| lease.item)
    }

    /// Takes back what has run out by `elapsed`, in the order in which it was handed out. Looks through all leases,
    /// but only when the bound has passed: about once per lease time.
    pub(super) fn take_expired(&mut self, elapsed: Duration) -> Vec<Item> {
        if self.earliest.is_none_or(|earliest| elapsed < earliest) {
            return Vec::new();
        }
        if planted(Bug::LeaseForEver) {
            self.earliest = None;
            return Vec::new();
        }
        let expired = self.take_where(|lease| lease.until <= elapsed);
        self.earliest = self.iter().map(|lease| lease.until).min();
        expired
    }

    /// Takes back what this consumer holds, in the order in which it was handed out.
    pub(super) fn take_from(&mut self, consumer: u64) -> Vec<Item> {
        self.take_where(|lease| lease.consumer == consumer)
    }

    fn take_where(&mut self, which: impl Fn(&Lease) -> bool) -> Vec<Item> {
        let mut taken: Vec<(u64, Item)> = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(lease) = slot.take_if(|lease| which(lease)) {
                self.free.push(index);
                taken.push((lease.fence, lease.item));
            }
        }
        taken.sort_unstable_by_key(|(fence, _)| *fence);
        taken.into_iter().map(|(_, item)| item).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.slots.iter().flatten()
    }
}
