//! A member of a group: receives, acks in any order, and leaves.

use super::{
    broker::{LogBroker, State, closed, missing, stopped},
    group::group_name,
    transport::Session,
};
use dwell_core::{
    Action, BoxFuture, Clock, Consumer, Delivery, Error, ErrorKind, LeaseId, Receipt, Receive, Result,
    Settle, Subscription, Text, Unsettled, ready,
};
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// Position of a receipt: the lane in the upper bits, the offset in the lower ones.
const LANE_SHIFT: u32 = 48;

pub(super) struct LogConsumer {
    broker: LogBroker,
    clock: Arc<dyn Clock>,
    session: Arc<Session>,
    subscription: Subscription,
    group: Text,
    member: u64,
    closed: AtomicBool,
    wake: Arc<Notify>,
}

impl LogConsumer {
    /// Joins the group. `NotFound` if it was never provisioned.
    pub(super) fn join(
        broker: LogBroker,
        clock: Arc<dyn Clock>,
        session: Arc<Session>,
        subscription: Subscription,
    ) -> Result<Self> {
        let group = group_name(&subscription.topic, &subscription.name);
        let member = broker.numbers().fetch_add(1, Ordering::Relaxed);
        let wake = {
            let mut state = broker.running()?;
            let joined = state.groups.get_mut(&group).filter(|group| group.is_of(&subscription));
            let joined = joined.ok_or_else(|| unknown(&subscription))?;
            joined.join(member, session.number, broker.numbers());
            joined.wake.clone()
        };
        Ok(Self { broker, clock, session, subscription, group, member, closed: AtomicBool::new(false), wake })
    }

    /// Takes the available records. Nothing is awaited after a record was taken, so a dropped
    /// receive loses none.
    fn take(&self, max: usize) -> Result<Vec<Delivery>> {
        if self.closed.load(Ordering::SeqCst) || self.session.is_closed() {
            return Err(closed());
        }
        let mut state = self.broker.running()?;
        let group = state.groups.get_mut(&self.group).filter(|group| group.is_of(&self.subscription));
        let group = group.ok_or_else(|| unknown(&self.subscription))?;
        if !group.is_member(self.member) {
            group.join(self.member, self.session.number, self.broker.numbers());
        }
        let mut batch = vec![];
        for lane in group.lanes_of(self.member) {
            self.take_from(&mut state, lane, max, &mut batch);
        }
        Ok(batch)
    }

    fn take_from(&self, state: &mut State, lane: usize, max: usize, batch: &mut Vec<Delivery>) {
        while batch.len() < max {
            let State { topics, groups, .. } = &mut *state;
            let Some(group) = groups.get_mut(&self.group) else { return };
            let (topic, partition) = group.place(lane);
            let Some(claim) = group.claim(lane) else { return };
            let offset = claim.next;
            let record = topics.get(&topic).and_then(|log| log.partitions[partition].get(offset as usize));
            let Some(record) = record.filter(|_| claim.tracker.span() < self.broker.settings().max_span)
            else {
                return;
            };
            let (message, problem) = record.message((&topic, partition, offset));
            let receipt = Receipt::new((lane as u64) << LANE_SHIFT | offset, claim.epoch);
            batch.push(Delivery { message, deliveries: None, due: record.at, problem, receipt });
            claim.next += 1;
            claim.tracker.received(offset);
        }
    }

    fn settle_one(&self, state: &mut State, settle: &Settle) -> Result<()> {
        let of = &self.subscription.address();
        let undeclared = match &settle.action {
            Action::Ack { result: None } => None,
            Action::Ack { result: Some(_) } => Some("keep a result, because it has no ledger"),
            Action::Release => Some("release a message; move it to its own subscription instead"),
            Action::Move { .. } => {
                Some("move atomically; copy the message, wait for the confirmation, then ack")
            }
        };
        if let Some(what) = undeclared {
            return Err(Error::new(ErrorKind::Unsupported, format!("the log cannot {what} (`{of}`)")));
        }
        if state.failing_settles > 0 {
            state.failing_settles -= 1;
            let text = format!("committing for `{of}` failed; settle the message again");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let LeaseId { position, fence } = settle.delivery.receipt.lease();
        let (lane, offset) = split(position);
        let stale = || {
            let id = &settle.delivery.message.id;
            let text =
                format!("`{id}` in `{of}` no longer belongs to this consumer: its partition was reassigned");
            Error::new(ErrorKind::Stale, text)
        };
        let max_span = self.broker.settings().max_span;
        let group = state.groups.get_mut(&self.group).ok_or_else(stale)?;
        let claim = group.claim_of(lane, self.member, fence).ok_or_else(stale)?;
        if !claim.tracker.is_open(offset) {
            return Err(stale());
        }
        let was_full = claim.tracker.span() >= max_span;
        group.complete(lane, offset);
        if was_full {
            group.wake.notify_waiters();
        }
        Ok(())
    }

    fn leave(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            if let Some(group) = self.broker.lock().groups.get_mut(&self.group) {
                group.leave(self.member, self.broker.numbers());
            }
            self.wake.notify_waiters();
        }
    }
}

impl Consumer for LogConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        let Receive { max, wait, .. } = receive;
        Box::pin(async move {
            let mut give_up = self.clock.sleep(wait);
            loop {
                // Registered before the check, so that no record in between is missed.
                let mut woken = pin!(self.wake.notified());
                woken.as_mut().enable();
                let batch = self.take(max)?;
                if !batch.is_empty() || wait.is_zero() || max == 0 {
                    return Ok(batch);
                }
                tokio::select! {
                    biased;
                    () = woken => {}
                    () = &mut give_up => return Ok(vec![]),
                }
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        let unsettled = batch.into_iter().filter_map(|settle| {
            let done = match self.broker.running() {
                Ok(mut state) => self.settle_one(&mut state, &settle),
                Err(_) => Err(stopped()),
            };
            done.err().map(|error| Unsettled { settle, error })
        });
        ready(unsettled.collect())
    }

    /// Returns the deliveries that were lost with their partition. There is no lease to renew.
    fn extend(&self, leases: Vec<LeaseId>, _by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        ready(self.broker.running().map(|mut state| {
            let mut group = state.groups.get_mut(&self.group);
            let lost = |lease: &LeaseId| {
                let (lane, offset) = split(lease.position);
                let claim = group.as_mut().and_then(|group| group.claim_of(lane, self.member, lease.fence));
                claim.is_none_or(|claim| !claim.tracker.is_open(offset))
            };
            leases.into_iter().filter(lost).collect()
        }))
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.leave();
        ready(Ok(()))
    }
}

/// Ends the session of a consumer that is dropped without `close`, as a crash does: nothing more is
/// committed.
impl Drop for LogConsumer {
    fn drop(&mut self) {
        self.leave();
    }
}

fn split(position: u64) -> (usize, u64) {
    ((position >> LANE_SHIFT) as usize, position & ((1 << LANE_SHIFT) - 1))
}

fn unknown(subscription: &Subscription) -> Error {
    missing(&format!("subscription `{}`", subscription.address()))
}
