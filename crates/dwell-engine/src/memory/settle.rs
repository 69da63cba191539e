//! Settling what consumers hold: each settlement is one step, whatever it moves where.

use super::{
    hashed::HashedId,
    item::{Item, LastRun, new_item},
    queue::Signal,
    records::Ending,
    state::{QueueAt, State, TopicAt},
};
use crate::planted::{Bug, planted};
use dwell_core::{
    Action, Envelope, Error, ErrorKind, LeaseId, Note, Outcome, Result, ScheduleId, Settle,
    State as MessageState, Timestamp,
};

/// What a batch of settlements puts back. It goes back when the batch is done, so that it keeps its order.
#[derive(Default)]
pub(super) struct Released(Vec<(u64, Item)>);

impl State {
    /// Settles one delivery of this queue, or changes nothing.
    pub(super) fn settle(
        &mut self,
        at: QueueAt,
        settle: &Settle,
        now: Timestamp,
        released: &mut Released,
    ) -> Result<()> {
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
                // Looked for first: where there is nowhere to go, nothing moves.
                let target = match self.queues[at.0].leases.get_mut(lease) {
                    Some(_) => self.target(to)?,
                    None => return Err(self.stale(at)),
                };
                let held = self.take_leased(at, lease)?;
                let envelope = Envelope::new(to.clone(), settle.delivery.message.clone()).due(*due);
                let due = due.resolve(now).max(now);
                let id = (due > now).then(|| self.name_of_move(target.topic(), &envelope));
                let mut item = new_item(envelope.message, held.serial, due, now);
                item.created_at = held.created_at;
                item.last_run = Some(Box::new(last_run(note, held.updated_at)));
                match id {
                    Some(id) => self.hold(target, item, id, None),
                    None => self.deliver(target, item, now),
                }
            }
        }
        Ok(())
    }

    /// The name under which a message waits that is moved. A copy of it that was stored before makes way for it. What was in
    /// somebody's hands and moved is no copy, nor is what a user sent: it is another message of the same id and content, and
    /// both go on, each under a name of its own.
    fn name_of_move(&mut self, topic: TopicAt, envelope: &Envelope) -> HashedId {
        let id = self.name_of_copy(topic, envelope);
        let waiting = &self.topics[topic.0].waiting;
        let Some(key) = waiting.find(&id) else { return id };
        if waiting.get(key).is_some_and(|(_, there)| there.is_stored_copy()) {
            self.unhold(topic, key);
            return id;
        }
        self.free_name(topic, envelope)
    }

    /// A name that nothing waits under yet.
    fn free_name(&mut self, topic: TopicAt, envelope: &Envelope) -> HashedId {
        let name = ScheduleId::of(envelope);
        loop {
            let number = self.next();
            let id = self.hasher.of(&format!("{name}&{number}").into());
            if self.topics[topic.0].waiting.find(&id).is_none() {
                return id;
            }
        }
    }

    /// Puts back what a batch released, in the order in which it was handed out.
    pub(super) fn put_back(&mut self, at: QueueAt, released: Released) {
        let mut items = released.0;
        items.sort_unstable_by_key(|(fence, _)| *fence);
        self.give_back(at, items.into_iter().map(|(_, item)| item).collect());
    }

    /// Gives back all that a consumer holds, as it came.
    pub(super) fn give_back_from(&mut self, at: QueueAt, consumer: u64, now: Timestamp) {
        let mut items = self.queues[at.0].leases.take_from(consumer);
        for item in &mut items {
            item.deliveries = item.deliveries.saturating_sub(1);
            item.updated_at = now;
        }
        self.give_back(at, items);
    }

    /// Puts messages from consumers' hands in front of their queue, or of the one that adopted it.
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

    /// Takes a message out of a consumer's hands for good.
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
                "this delivery of `{}/{}` was settled before, given back, or its lease ran out: \
                 drop it, the message is in other hands",
                self.topics[queue.topic.0].name, queue.name
            ),
        )
    }
}

fn last_run(note: &Note, started: Timestamp) -> LastRun {
    LastRun { outcome: note.outcome, error: note.error.clone(), worker: note.worker.clone(), started }
}

/// What an acked message became; `None` if it lives on as a copy. Who acks a dead letter drops it.
fn end_of(outcome: Outcome, is_dead: bool) -> Option<MessageState> {
    match outcome {
        Outcome::Deferred | Outcome::Failed | Outcome::Released => None,
        Outcome::Handled | Outcome::Forwarded if !is_dead => Some(MessageState::Done),
        _ => Some(MessageState::Discarded),
    }
}
