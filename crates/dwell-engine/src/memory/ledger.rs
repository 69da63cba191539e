//! The ledger of a memory transport.

use super::{
    accept::is_same_content,
    item::{Item, new_item},
    records::{Ending, Held, Place, history},
    shared::Shared,
    state::{QueueAt, State, Target, TopicAt},
};
use crate::planted::{Bug, planted};
use bytes::Bytes;
use dwell_core::{
    Address, Answer, BoxFuture, Change, Changed, Count, Cursor, Ledger, Message, MessageId, Moment, Of,
    Oldest, Page, Record, RecordQuery, Result, State as MessageState, Text, Timestamp, wheel::Key, wire,
};
use std::{sync::Arc, time::Duration};

/// The ledger of a memory transport.
///
/// Ready and leased messages have no index, because every message would pay for it: a lookup by id,
/// or a page, visits all of them. Pending messages have an index by id. The history contains only
/// the last run and the current state.
pub(super) struct MemoryLedger(pub(super) Arc<Shared>);

impl Ledger for MemoryLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            self.0.promote_all().await?;
            let (now, elapsed) = (self.0.now(), self.0.elapsed());
            self.0.open(|state| state.records_of(id, now, elapsed))
        })
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        Box::pin(async move {
            self.0.promote_all().await?;
            super::page::list(&self.0, &query)
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        Box::pin(async move {
            self.0.promote_all().await?;
            self.0.open(|state| state.counts())
        })
    }

    fn oldest_ready(&self) -> BoxFuture<'_, Result<Vec<Oldest>>> {
        Box::pin(async move {
            self.0.promote_all().await?;
            self.0.open(|state| state.oldest_ready())
        })
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        Box::pin(async move {
            self.0.promote_all().await?;
            let now = self.0.moment();
            self.0.open(|state| state.change(id, &of, &change, &by.into(), now))?
        })
    }
}

/// A record that a change selects.
struct Found {
    topic: TopicAt,
    queue: Option<QueueAt>,
    spot: Spot,
    home: (Text, Option<Text>),
    state: MessageState,
    created_at: Timestamp,
    serial: u64,
    message: Message,
}

#[derive(Clone, Copy)]
enum Spot {
    Waiting(Key),
    Ready,
    /// Leased, about to be leased, or finished: it cannot be changed.
    Away,
}

impl State {
    fn records_of(&self, id: &MessageId, now: Timestamp, elapsed: Duration) -> Vec<Record> {
        let held = self.held_of(id).into_iter().map(|(_, held)| {
            let mut record = self.record(&held, now, elapsed);
            record.history = history(&record, held.item().last_run.as_ref().map(|run| run.started));
            if let (Some(by), Some(present)) = (held.rescheduled_by(), record.history.last_mut()) {
                present.by = Some(by.clone());
            }
            (held.item().serial, record)
        });
        let finished = self.finished.of(id, &self.hasher);
        let mut records: Vec<_> = held.chain(finished).collect();
        records.sort_by_key(|(serial, record)| (record.created_at, *serial));
        records.into_iter().map(|(_, record)| record).collect()
    }

    /// Returns all stored records of this message. A pending one has its key.
    fn held_of(&self, id: &MessageId) -> Vec<(Option<Key>, Held<'_>)> {
        let waiting = self.topics.iter().enumerate().flat_map(|(index, topic)| {
            let keys = topic.waiting.of_message(id, &self.hasher).into_iter();
            keys.filter_map(move |key| {
                let (due, waiting) = topic.waiting.get(key)?;
                Some((Some(key), self.waiting(TopicAt(index), due, waiting)))
            })
        });
        let held = self.held_by_queues().filter(|held| held.item().message.id == *id);
        waiting.chain(held.map(|held| (None, held))).collect()
    }

    fn counts(&self) -> Vec<Count> {
        let mut counts = Vec::new();
        for topic in self.topics.iter().filter(|topic| !topic.is_dead) {
            let mut count = |subscription: Option<&Text>, state, count: usize| {
                if count > 0 {
                    let (topic, subscription) = (topic.name.clone(), subscription.cloned());
                    counts.push(Count { topic, subscription, state, count: count as u64 });
                }
            };
            for (state, waiting) in topic.publishes.by_state() {
                count(None, state, waiting);
            }
            for queue in topic.subscribed.iter().chain(&topic.kept).map(|at| &self.queues[at.0]) {
                count(Some(&queue.name), MessageState::Ready, queue.ready());
                count(Some(&queue.name), MessageState::Processing, queue.leases.len());
                for (state, waiting) in queue.waits.by_state() {
                    count(Some(&queue.name), state, waiting);
                }
            }
        }
        counts.extend(self.dead.counts().chain(self.finished.counts()));
        counts
    }

    /// Visits ready messages only, however many are pending.
    fn oldest_ready(&self) -> Vec<Oldest> {
        let topics = self.topics.iter().filter(|topic| !topic.is_dead);
        let queues =
            topics.flat_map(|topic| topic.subscribed.iter().chain(&topic.kept).map(move |at| (topic, at)));
        queues
            .filter_map(|(topic, at)| {
                let queue = &self.queues[at.0];
                let due = queue.iter_ready().map(|item| item.due).min()?;
                Some(Oldest { topic: topic.name.clone(), subscription: Some(queue.name.clone()), due })
            })
            .collect()
    }

    fn change(
        &mut self,
        id: &MessageId,
        of: &Of,
        change: &Change,
        by: &Text,
        moment: Moment,
    ) -> Result<Vec<Answer>> {
        let now = moment.floor();
        let found = self.found(id, of, now);
        let targets = match change {
            Change::Replay(body) => self.replay_targets(id, &found, body.as_ref())?,
            _ => vec![None; found.len()],
        };
        let mut answers = Vec::new();
        // Several subscriptions of a dead-letter topic have copies of a dead letter, which count as
        // one record. Another message that was sent under this id with other content is a separate
        // record.
        let mut answered: Vec<((Text, Option<Text>), Message)> = Vec::new();
        for (found, target) in found.into_iter().zip(targets) {
            let is_dead = found.state == MessageState::Dead;
            let is_copy = is_dead
                && answered
                    .iter()
                    .any(|(home, message)| *home == found.home && is_same_content(message, &found.message));
            // What the forwarder may have sent cannot be changed any more.
            let is_sent = wire::is_in_doubt(&found.message.headers) && !is_dead;
            let done = match (change, found.spot) {
                _ if is_sent => false,
                (Change::Cancel, Spot::Waiting(key)) if !is_dead => {
                    self.cancel(found.topic, key, now, by.clone());
                    true
                }
                // A job can be cancelled until it is leased.
                (Change::Cancel, Spot::Ready)
                    if !is_dead && wire::is_job(&found.home.0, &found.message.headers) =>
                {
                    let Some(item) = self.take_out(&found) else { continue };
                    let ending = Ending::new(MessageState::Cancelled, now);
                    let ending = Ending { by: Some(by.clone()), ..ending };
                    self.finish(found.topic, found.queue, item, ending);
                    true
                }
                (Change::Reschedule(due), Spot::Waiting(key)) if !is_dead => {
                    self.reschedule(found.topic, key, due.resolve(moment), now, by.clone());
                    true
                }
                (Change::Replay(_) | Change::Discard, Spot::Waiting(_) | Spot::Ready) if is_dead => {
                    let Some(item) = self.take_out(&found) else { continue };
                    match (change, target) {
                        _ if is_copy => {}
                        (Change::Replay(body), Some(target)) => self.replay(target, item, body.clone(), now),
                        _ => {
                            let ending = Ending::new(MessageState::Discarded, now);
                            let ending = Ending { by: Some(by.clone()), ..ending };
                            self.finish(found.topic, found.queue, item, ending);
                        }
                    }
                    true
                }
                _ => false,
            };
            if is_copy {
                continue;
            }
            if is_dead {
                answered.push((found.home.clone(), found.message.clone()));
            }
            let changed = if done { Changed::Done } else { Changed::TooLate };
            answers.push(Answer { subscription: found.home.1, changed });
        }
        Ok(answers)
    }

    /// Returns the selected records of the message. Those that can be changed come first.
    fn found(&self, id: &MessageId, of: &Of, now: Timestamp) -> Vec<Found> {
        let held = self.held_of(id).into_iter().map(|(key, held)| Found {
            topic: held.topic,
            queue: held.queue,
            spot: match (key, held.place) {
                (Some(key), _) if held.due() > now => Spot::Waiting(key),
                (None, Place::Ready(_)) => Spot::Ready,
                _ => Spot::Away,
            },
            home: self.home(held.topic, held.queue, &held.item().message),
            state: self.state_of(&held),
            created_at: held.item().created_at,
            serial: held.item().serial,
            message: held.item().message.clone(),
        });
        let finished = self.finished.of(id, &self.hasher).into_iter().map(|(serial, record)| Found {
            topic: TopicAt(0),
            queue: None,
            spot: Spot::Away,
            home: (record.topic, record.subscription),
            state: record.state,
            created_at: record.created_at,
            serial,
            message: record.message,
        });
        let is_asked = |found: &Found| of.has(&found.home.0, found.home.1.as_deref(), &found.message);
        let mut found: Vec<_> = held.chain(finished).filter(is_asked).collect();
        found.sort_by_key(|found| (matches!(found.spot, Spot::Away), found.created_at, found.serial));
        found
    }

    /// Returns the target of each dead record. Returns an error if one has none, before any record
    /// is changed.
    fn replay_targets(
        &mut self,
        id: &MessageId,
        found: &[Found],
        body: Option<&Bytes>,
    ) -> Result<Vec<Option<Target>>> {
        if let Some(body) = body {
            self.check_size(&Message::new(id.clone(), "", body.clone()))?;
        }
        let mut target = |found: &Found| {
            if found.state != MessageState::Dead {
                return Ok(None);
            }
            let (topic, Some(name)) = found.home.clone() else { return Err(wire::homeless(id)) };
            if topic == self.topics[found.topic.0].name {
                return Err(wire::homeless(id));
            }
            let to = Address::Subscription { topic, name };
            self.target(&to).map(Some)
        };
        found.iter().map(&mut target).collect()
    }

    /// Removes a message that is not leased from its place.
    fn take_out(&mut self, found: &Found) -> Option<Item> {
        match (found.spot, found.queue) {
            (Spot::Waiting(key), _) => self.unhold(found.topic, key).map(|waiting| waiting.item),
            (Spot::Ready, Some(queue)) => {
                let item = self.queues[queue.0].remove(found.serial)?;
                self.left(found.topic, found.queue, &item.message);
                Some(item)
            }
            _ => None,
        }
    }

    /// Delivers a dead letter as a new message.
    fn replay(&mut self, target: Target, item: Item, body: Option<Bytes>, now: Timestamp) {
        let mut replayed = new_item(item.message.anew(body), item.serial, now, now);
        replayed.created_at = item.created_at;
        let target = if planted(Bug::ReplayFansOut) { Target::Topic(target.topic()) } else { target };
        self.deliver(target, replayed, now);
    }

    /// Cancels a pending entry, and keeps its record.
    pub(super) fn cancel(&mut self, at: TopicAt, key: Key, now: Timestamp, by: Text) {
        let due = self.topics[at.0].waiting.get(key).map(|(due, _)| due);
        if let Some((due, mut waiting)) = due.zip(self.unhold(at, key)) {
            let queue = waiting.queue.map(|queue| self.adopter(queue));
            let ending = Ending { by: Some(by), ..Ending::new(MessageState::Cancelled, now) };
            waiting.item.due = due;
            self.finish(at, queue, waiting.item, ending);
        }
    }
}

/// Returns the cursor behind a record.
pub(super) fn cursor(record: &Record, serial: u64) -> Cursor {
    let place = format!("{serial:016x}").into();
    Cursor { created_at: record.created_at, id: record.message.id.clone(), place }
}
