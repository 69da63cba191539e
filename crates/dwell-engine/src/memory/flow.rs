//! Flow of messages: to queues, and into the wheel until they are due.

use super::{
    hashed::HashedId,
    ids::Known,
    item::Item,
    provision::Plan,
    queue::Signal,
    records::Ending,
    state::{QueueAt, State, Target, TopicAt},
    waiting::{Chosen, Waiting},
};
use crate::planted::{Bug, planted};
use dwell_core::{MessageId, ScheduleId, State as MessageState, Text, Timestamp, Unclaimed, wheel::Key};

/// Maximum work under one hold of the lock, in messages. A million messages that are due at once do
/// not block other callers.
pub(super) const CHUNK: usize = 1000;

impl State {
    /// Makes a message ready, for one subscription or for all existing ones.
    pub(super) fn deliver(&mut self, target: Target, mut item: Item, now: Timestamp) {
        let topic = match target {
            Target::Queue(_, queue) => return self.push(queue, item),
            Target::Topic(topic) => topic,
        };
        let subscribed = self.topics[topic.0].subscribed.len();
        if subscribed == 0 {
            return self.deliver_unclaimed(topic, item, now);
        }
        for index in 1..subscribed {
            let queue = self.topics[topic.0].subscribed[index];
            let mut copy = item.clone();
            copy.serial = self.next();
            self.push(queue, copy);
        }
        item.updated_at = now;
        self.push(self.topics[topic.0].subscribed[0], item);
    }

    fn deliver_unclaimed(&mut self, at: TopicAt, item: Item, now: Timestamp) {
        let topic = &mut self.topics[at.0];
        if topic.unclaimed == Unclaimed::Keep {
            let kept = self.kept(at);
            return self.push(kept, item);
        }
        topic.discarded += 1;
        if topic.discarded == 1 {
            self.warnings.push(topic.name.clone());
        }
        self.finish(at, None, item, Ending::new(MessageState::Discarded, now));
    }

    fn push(&mut self, queue: QueueAt, item: Item) {
        let queue = self.adopter(queue);
        self.entered(self.queues[queue.0].topic, Some(queue), &item.message);
        self.queues[queue.0].push(item);
        self.signal(queue, Signal::One);
    }

    /// Stores a message until it is due. No other entry may have its name.
    pub(super) fn hold(
        &mut self,
        target: Target,
        item: Item,
        id: HashedId,
        chosen: Option<Chosen>,
        is_copy: bool,
    ) {
        let (at, queue, due) = (target.topic(), target.queue(), item.due);
        let outcome = item.last_run.as_ref().map(|run| run.outcome);
        let state = MessageState::of_waiting(item.message.attempts, outcome);
        self.entered(at, queue, &item.message);
        match queue {
            Some(queue) => self.queues[queue.0].waits.add(state),
            None => self.topics[at.0].publishes.add(state),
        }
        let topic = &mut self.topics[at.0];
        let chosen = chosen.map(Box::new);
        let waiting = Waiting { id, queue, chosen, is_copy, state, rescheduled_by: None, item };
        topic.waiting.insert(due, waiting, &self.hasher);
        if topic.expect(due) {
            self.signal_topic(at);
        }
    }

    /// Removes a pending entry, which then never fires.
    pub(super) fn unhold(&mut self, at: TopicAt, key: Key) -> Option<Waiting> {
        let waiting = self.topics[at.0].waiting.remove(key, &self.hasher)?;
        self.unheld(at, &waiting);
        Some(waiting)
    }

    fn unheld(&mut self, at: TopicAt, waiting: &Waiting) {
        // An entry for an adopted queue is counted for the adopter.
        let queue = waiting.queue.map(|queue| self.adopter(queue));
        self.left(at, queue, &waiting.item.message);
        match queue {
            Some(queue) => self.queues[queue.0].waits.remove(waiting.state),
            None => self.topics[at.0].publishes.remove(waiting.state),
        }
    }

    /// Gives a pending entry a new due time, on behalf of `by`.
    pub(super) fn reschedule(&mut self, at: TopicAt, key: Key, due: Timestamp, now: Timestamp, by: Text) {
        let topic = &mut self.topics[at.0];
        topic.waiting.reschedule(key, due, now, by);
        if topic.expect(due) {
            self.signal_topic(at);
        }
    }

    /// Makes due messages ready, up to about `limit`. Returns whether more are due.
    pub(super) fn promote(&mut self, at: TopicAt, now: Timestamp, limit: usize) -> bool {
        let now = if planted(Bug::LookAhead) { Timestamp(now.0 + 1000) } else { now };
        let topic = &mut self.topics[at.0];
        let mut due = std::mem::take(&mut self.due);
        let max = (limit / topic.subscribed.len().max(1)).max(1);
        topic.waiting.pop_due(now, max, &mut due, &self.hasher);
        for (when, waiting) in due.drain(..) {
            self.fire(at, when, waiting, now);
        }
        self.due = due;
        self.is_due(at, now)
    }

    /// Makes some due messages ready, in any topic. Returns whether there were any.
    pub(super) fn promote_any(&mut self, now: Timestamp) -> bool {
        let due = (0..self.topics.len()).map(TopicAt).find(|at| self.is_due(*at, now));
        due.inspect(|at| _ = self.promote(*at, now, CHUNK)).is_some()
    }

    /// Makes some due messages ready, in the topics that the plan adds subscriptions to. Returns
    /// whether there were any.
    pub(super) fn promote_before(&mut self, plan: &Plan, now: Timestamp) -> bool {
        let topics: Vec<_> = plan.subscribes_to().filter_map(|name| self.topic(name).ok()).collect();
        let due = topics.into_iter().find(|at| self.is_due(*at, now));
        due.inspect(|at| _ = self.promote(*at, now, CHUNK)).is_some()
    }

    /// Whether a pending message in this topic is due.
    pub(super) fn is_due(&mut self, at: TopicAt, now: Timestamp) -> bool {
        self.topics[at.0].waiting.next_due().is_some_and(|due| due <= now)
    }

    fn fire(&mut self, at: TopicAt, due: Timestamp, waiting: Waiting, now: Timestamp) {
        self.done += 1;
        self.unheld(at, &waiting);
        let content = waiting.chosen.map(|chosen| chosen.content);
        let message = &waiting.item.message;
        self.remember(at, &message.id, waiting.id, Known::new(content, Some(due)));
        let target = waiting.queue.map_or(Target::Topic(at), |queue| Target::Queue(at, queue));
        let mut item = waiting.item;
        (item.due, item.updated_at) = (due, now);
        self.deliver(target, item, now);
    }

    /// Remembers a name, and the message id for calls by id. The name of a plain publish is derived
    /// from the message id: see [`State::is_known`].
    pub(super) fn remember(&mut self, at: TopicAt, message: &MessageId, name: HashedId, known: Known) {
        if ScheduleId::published(&name.id, &self.topics[at.0].name) != Some(&*message.0) {
            let id = self.hasher.of_all_entries(message);
            self.ids.remember(at, id, Known::new(None, known.due));
        }
        self.ids.remember(at, name, known);
    }

    /// Remembers that a message is being sent to another broker under this name.
    pub(super) fn begin(&mut self, at: TopicAt, message: &MessageId, name: HashedId, content: u128) {
        let all = self.hasher.of_all_entries(message);
        let sending = self.ids.get(at, &name).map_or(0, |known| known.sending);
        let of_all = match self.ids.get(at, &all) {
            None => Known { sending: 1, ..Known::new(None, None) },
            Some(known) if known.sending > 0 && sending == 0 => Known { sending: known.sending + 1, ..known },
            Some(known) => known,
        };
        self.ids.remember(at, all, of_all);
        self.ids.remember(at, name, Known { sending: sending + 1, ..Known::new(Some(content), None) });
    }

    /// Such a send failed, and nothing was sent. If an earlier one may have succeeded, the name
    /// stays as it is.
    pub(super) fn forget_sending(&mut self, at: TopicAt, message: &MessageId, name: HashedId, content: u128) {
        let is_its = |known: Known| known.sending == 1 && known.content == Some(content);
        if !self.ids.get(at, &name).is_some_and(is_its) {
            return;
        }
        self.ids.remove(at, name);
        let all = self.hasher.of_all_entries(message);
        match self.ids.get(at, &all) {
            Some(Known { sending: 1, .. }) => self.ids.remove(at, all),
            Some(known) if known.sending > 1 => {
                self.ids.remember(at, all, Known { sending: known.sending - 1, ..known });
            }
            _ => {}
        }
    }

    /// Whether this message was sent to this topic, and fired, or may have been sent on from there.
    pub(super) fn is_known(&self, at: TopicAt, message: &MessageId) -> bool {
        let publish = || self.hasher.of(&ScheduleId::of_publish(&message.0, &self.topics[at.0].name).0);
        self.ids.get(at, &self.hasher.of_all_entries(message)).is_some()
            || self.ids.get(at, &publish()).is_some()
    }
}
