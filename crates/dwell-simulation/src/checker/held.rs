//! Deliveries held by processes, as recorded at the broker, and deliveries that a log would repeat.

use crate::{
    life::Who,
    trace::{Received, Service, Subject},
};
use dwell_core::{Address, LeaseId};
use std::collections::BTreeMap;

/// A delivery.
#[derive(Clone, Debug)]
pub(super) struct Delivered {
    pub(super) subject: Subject,
    /// Its final destination.
    pub(super) to: Address,
    pub(super) handled: u32,
}

type Place = (Who, u64, Service, Address, LeaseId);

#[derive(Default)]
pub(super) struct Held {
    deliveries: BTreeMap<Place, Delivered>,
    /// Latest fence delivered for each position.
    fences: BTreeMap<(Service, Address, u64), u64>,
    /// Deliveries of a log, with whether each is settled: everything from the first unsettled one
    /// may be delivered again.
    read: BTreeMap<(Address, u64), (Delivered, bool)>,
    impaired: BTreeMap<(Who, Address), u32>,
}

impl Held {
    /// Records a delivery. Returns whether its process currently cannot renew its leases.
    pub(super) fn receive(&mut self, received: &Received, sessions: bool) -> bool {
        let delivered = Delivered {
            subject: received.subject.clone(),
            to: received.to.clone(),
            handled: received.attempts.handled,
        };
        let of = &received.subscription;
        let position = received.lease.position;
        self.fences.insert((received.service, of.clone(), position), received.lease.fence);
        if sessions && received.service == Service::Target {
            self.read.insert((of.clone(), position), (delivered.clone(), false));
        }
        let place = (received.who, received.consumer, received.service, of.clone(), received.lease);
        self.deliveries.insert(place, delivered);
        self.impaired.contains_key(&(received.who, of.clone()))
    }

    /// Records a settlement. Returns its delivery, and whether its receipt was the latest.
    pub(super) fn settle(
        &mut self,
        who: Who,
        service: Service,
        of: &Address,
        lease: LeaseId,
    ) -> (Option<Delivered>, bool) {
        let is_latest = self.fences.get(&(service, of.clone(), lease.position)) == Some(&lease.fence);
        if let Some((_, settled)) = self.read.get_mut(&(of.clone(), lease.position)) {
            *settled = true;
        }
        let place = self.deliveries.keys().find(|(holder, _, at, subscription, held)| {
            (*holder, *at, subscription, *held) == (who, service, of, lease)
        });
        let place = place.cloned();
        (place.and_then(|place| self.deliveries.remove(&place)), is_latest)
    }

    /// Returns all deliveries held by a process.
    pub(super) fn of(&self, who: Who) -> Vec<Delivered> {
        self.deliveries.iter().filter(|(place, _)| place.0 == who).map(|(_, held)| held.clone()).collect()
    }

    /// Returns the deliveries of one subscription held by a process.
    pub(super) fn of_subscription(&self, who: Who, of: &Address) -> Vec<Delivered> {
        let held = self.deliveries.iter().filter(|(place, _)| place.0 == who && place.3 == *of);
        held.map(|(_, held)| held.clone()).collect()
    }

    /// Removes a process with its deliveries.
    pub(super) fn drop_process(&mut self, who: Who) {
        self.deliveries.retain(|place, _| place.0 != who);
        self.impaired.retain(|(holder, _), _| *holder != who);
    }

    /// Removes a consumer, and returns its deliveries.
    pub(super) fn take_consumer(&mut self, who: Who, consumer: u64, of: &Address) -> Vec<Delivered> {
        let is_its = |place: &Place| place.0 == who && place.1 == consumer && place.3 == *of;
        let taken = self.deliveries.iter().filter(|(place, _)| is_its(place));
        let taken = taken.map(|(_, held)| held.clone()).collect();
        self.deliveries.retain(|place, _| !is_its(place));
        taken
    }

    pub(super) fn impair(&mut self, who: Who, of: &Address, on: bool) {
        let key = (who, of.clone());
        if on {
            *self.impaired.entry(key).or_default() += 1;
        } else if let Some(count) = self.impaired.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.impaired.remove(&key);
            }
        }
    }

    /// Returns the deliveries that a log repeats if the reader of a partition changes: from the
    /// first unsettled one in each lane. A position contains the lane in its upper bits and the
    /// offset below.
    pub(super) fn uncommitted(&mut self, of: &Address) -> Vec<Delivered> {
        const LANE_SHIFT: u32 = 48;
        let mut first_open: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, position), (_, settled)) in self.read.iter().filter(|((at, _), _)| at == of) {
            if !settled {
                first_open.entry(position >> LANE_SHIFT).or_insert(*position);
            }
        }
        self.read.retain(|(at, position), _| {
            at != of || first_open.get(&(position >> LANE_SHIFT)).is_some_and(|first| position >= first)
        });
        self.read.iter().filter(|((at, _), _)| at == of).map(|(_, (read, _))| read.clone()).collect()
    }
}
