//! Leased messages, and the expiry of their leases.

use super::item::Item;
use crate::planted::{Bug, planted};
use dwell_core::{LeaseId, Text};
use std::time::Duration;

/// A leased message.
pub(super) struct Lease {
    /// Unique number. The receipt of an earlier delivery does not match.
    fence: u64,
    /// Expiry in monotonic time, so that setting the wall clock does not end a lease.
    pub(super) until: Duration,
    pub(super) consumer: u64,
    /// Worker name from the caller of `receive`.
    pub(super) worker: Option<Text>,
    pub(super) item: Item,
}

/// A slab of leases. The position of a lease is its index, so no map is needed.
#[derive(Default)]
pub(super) struct Leases {
    slots: Vec<Option<Lease>>,
    free: Vec<usize>,
    /// Lower bound for the expiry of all leases. `None` if there was no lease since all had
    /// expired. It is not exact, so that settling a lease costs nothing here. Waiting receivers
    /// know it: see [`Leases::expect`].
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

    /// Records that a lease expires at `until`. Returns whether that is earlier than the waiting
    /// receivers know.
    pub(super) fn expect(&mut self, until: Duration) -> bool {
        let is_earlier = self.earliest.is_none_or(|earliest| until < earliest);
        if is_earlier {
            self.earliest = Some(until);
        }
        is_earlier
    }

    /// Returns a time before which no lease expires.
    pub(super) fn earliest(&self) -> Option<Duration> {
        self.earliest
    }

    /// Returns the lease of this receipt, unless it was lost.
    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Lease> {
        let slot = self.slots.get_mut(usize::try_from(id.position).ok()?)?;
        slot.as_mut().filter(|lease| lease.fence == id.fence || planted(Bug::StaleReceiptAccepted))
    }

    /// Takes the message of this receipt, unless its lease was lost.
    pub(super) fn take(&mut self, id: LeaseId) -> Option<Item> {
        self.get_mut(id)?;
        let index = id.position as usize;
        self.free.push(index);
        self.slots[index].take().map(|lease| lease.item)
    }

    /// Takes the messages whose leases have expired by `elapsed`, in the order of delivery. Visits
    /// all leases, but only after the lower bound, which is about once per lease time.
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

    /// Takes the messages that this consumer has leased, in the order of delivery.
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
