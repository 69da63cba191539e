//! The deliveries that a performer holds. The monitor and the lease renewal read the same table.

use dwell_core::{Delivery, LeaseId, Message, Timestamp};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// A delivery that a performer holds. It contains only what the monitor shows, because every
/// message pays for it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) message: Message,
    pub(crate) lease: LeaseId,
    /// When the message became due or was sent, if known.
    pub(crate) enqueued: Option<Timestamp>,
    /// When the message was received, in elapsed time.
    pub(crate) received: Duration,
    /// When the lease was last confirmed, in elapsed time.
    pub(crate) renewed: Duration,
    /// Start and maximum duration of the run.
    pub(crate) started: Option<Started>,
    /// Whether the lease is lost. Another worker has the message, or will soon receive it.
    pub(crate) lost: bool,
}

impl Slot {
    pub(crate) fn of(delivery: &Delivery, now: Duration) -> Self {
        Self {
            message: delivery.message.clone(),
            lease: delivery.receipt.lease(),
            enqueued: delivery.due.or(delivery.message.sent_at),
            received: now,
            renewed: now,
            started: None,
            lost: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    /// In elapsed time.
    pub(crate) at: Duration,
    pub(crate) timeout: Duration,
}

/// Abandoned runs of blocking handlers that have not returned. The monitor shows them until they
/// do.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    runs: Mutex<BTreeMap<u64, Slot>>,
    next: AtomicU64,
}

impl Abandoned {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Slot>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a unique number for a run. This table outlives the performer.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The slots of one performer. The performer, the renewal and the monitor lock them once per batch.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    table: Mutex<Table>,
    filled: Notify,
    /// Whether any lease was lost. Spares the check of each slot otherwise.
    any_lost: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

impl Slots {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a lease was lost.
    pub(crate) fn set_any_lost(&self) {
        self.any_lost.store(true, Ordering::Release);
    }

    /// Whether the lease in this slot is lost.
    pub(crate) fn is_lost(&self, slot: usize) -> bool {
        self.any_lost.load(Ordering::Acquire) && self.lock().get_mut(slot).is_some_and(|slot| slot.lost)
    }

    /// Notifies the renewal that a slot was filled.
    pub(crate) fn filled(&self) {
        self.filled.notify_one();
    }

    /// Completes once there is a lease to renew.
    pub(crate) async fn until_filled(&self) {
        while self.lock().iter().next().is_none() {
            self.filled.notified().await;
        }
    }
}

impl Table {
    pub(crate) fn insert(&mut self, slot: Slot) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.slots[index] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index).and_then(Option::as_mut)
    }

    pub(crate) fn remove(&mut self, index: usize) {
        if self.slots.get_mut(index).and_then(Option::take).is_some() {
            self.free.push(index);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
    }
}
