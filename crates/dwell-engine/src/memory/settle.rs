//! Settlement of deliveries. Each settlement is one step, wherever it moves the message.

use super::{
    item::{Item, LastRun, new_item},
    queue::Signal,
    records::Ending,
    state::{QueueAt, State},
};
use crate::planted::{Bug, planted};
use dwell_core::{
    Action, Envelope, Error, ErrorKind, LeaseId, Moment, Note, Outcome, Result, Settle,
    State as MessageState, Timestamp,
};

/// Released messages of a batch. They are returned after the batch, so that they keep their order.
#[derive(Default)]
pub(super) struct Released(Vec<(u64, Item)>);

impl State {
    /// Settles one delivery of this queue, or changes nothing.
    pub(super) fn settle(
        &mut self,
        at: QueueAt,
        settle: &Settle,
        moment: Moment,
        released: &mut Released,
    ) -> Result<()> {
        let now = moment.floor();
        self.done += 1;
        let lease = settle.delivery.receipt.lease();
        let note = &settle.note;
        match &settle.action {
            Action::Ack { result } => {
                let item = self.take_leased(at, lease)?;
                let is_dead = self.topics[self.queues[at.0].topic.0].is_dead;
                if let Some(state) = end_of(note.outcome, is_dead).filter(|_| note.moved_to.is_none()) {
                    let (by, error) = (Some(note.worker.clone()), note.error.clone());
                    let ending = Ending { state, at: now, by, error, result: result.clone() };
                    self.finish(self.queues[at.0].topic, Some(at), item, ending);
                }
            }
            Action::Release => {
                let mut item = self.queues[at.0].leases.take(lease).ok_or_else(|| self.stale(at))?;
                item.deliveries -= u32::from(!planted(Bug::ReleaseCountedAsCrash)).min(item.deliveries);
                item.updated_at = now;
                released.0.push((lease.fence, item));
            }
            Action::Move { to, due } => {
                // Checked first, so that a missing target changes nothing.
                let target = match self.queues[at.0].leases.get_mut(lease) {
                    Some(_) => self.target(to)?,
                    None => return Err(self.stale(at)),
                };
                let held = self.take_leased(at, lease)?;
                let envelope = Envelope::new(to.clone(), settle.delivery.message.clone()).due(*due);
                let due = due.resolve(moment).max(now);
                let slot = (due > now).then(|| self.slot_of_copy(target.topic(), &envelope));
                let mut item = new_item(envelope.message, held.serial, due, now);
                item.created_at = held.created_at;
                item.last_run = Some(Box::new(last_run(note, held.updated_at)));
                match slot {
                    Some(slot) => {
                        slot.replaces.map(|key| self.unhold(target.topic(), key));
                        self.hold(target, item, slot.id, None, false);
                    }
                    None => self.deliver(target, item, now),
                }
            }
        }
        Ok(())
    }

    /// Returns the released messages of a batch, in the order of delivery.
    pub(super) fn put_back(&mut self, at: QueueAt, released: Released) {
        let mut items = released.0;
        items.sort_unstable_by_key(|(fence, _)| *fence);
        self.give_back(at, items.into_iter().map(|(_, item)| item).collect());
    }

    /// Returns all messages that a consumer has leased, unchanged.
    pub(super) fn give_back_from(&mut self, at: QueueAt, consumer: u64, now: Timestamp) {
        let mut items = self.queues[at.0].leases.take_from(consumer);
        for item in &mut items {
            item.deliveries = item.deliveries.saturating_sub(1);
            item.updated_at = now;
        }
        self.give_back(at, items);
    }

    /// Returns leased messages to the front of their queue, or of its adopter.
    pub(super) fn give_back(&mut self, at: QueueAt, items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        let adopter = self.adopter(at);
        if adopter == at {
            self.queues[at.0].give_back(items);
        } else {
            for item in &items {
                self.queues[at.0].left(item);
            }
            self.adopt(at, adopter, items);
        }
        self.signal(adopter, Signal::One);
    }

    /// Ends a lease and takes its message.
    fn take_leased(&mut self, at: QueueAt, lease: LeaseId) -> Result<Item> {
        let queue = &mut self.queues[at.0];
        let Some(item) = queue.leases.take(lease) else { return Err(self.stale(at)) };
        if queue.left(&item) {
            self.signal(at, Signal::One);
        }
        self.left(self.queues[at.0].topic, Some(at), &item.message);
        Ok(item)
    }

    fn stale(&self, at: QueueAt) -> Error {
        let queue = &self.queues[at.0];
        Error::new(
            ErrorKind::Stale,
            format!(
                "this delivery of `{}/{}` was settled or returned before, or its lease has expired: \
                     drop it, because another consumer may have the message",
                self.topics[queue.topic.0].name, queue.name
            ),
        )
    }
}

fn last_run(note: &Note, started: Timestamp) -> LastRun {
    LastRun { outcome: note.outcome, error: note.error.clone(), worker: note.worker.clone(), started }
}

/// Returns the final state of an acked message. `None` if it lives on as a copy. An acked dead
/// letter is discarded.
fn end_of(outcome: Outcome, is_dead: bool) -> Option<MessageState> {
    match outcome {
        Outcome::Deferred | Outcome::Failed | Outcome::Released => None,
        Outcome::Handled | Outcome::Forwarded if !is_dead => Some(MessageState::Done),
        _ => Some(MessageState::Discarded),
    }
}
