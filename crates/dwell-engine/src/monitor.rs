//! What is going on: every message in flight, waiting to be tried again, or dead.
//!
//! Its cost is nothing per message: what is in flight is read from the slots that the pumps need anyway, what waits or
//! is dead from the ledger of the transport, or from the store behind it.

use crate::pump::{Pump, PumpShared, slots::Slot};
use bytes::Bytes;
use dwell_core::{
    Answer, Change, Changed, Clock, Count, Error, ErrorKind, Ledger, MessageId, Oldest, Record, RecordQuery,
    Result, State, Text, Timestamp, TypeName, wire,
};
use serde::Serialize;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Where a message stands, in four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Stage {
    /// It waits for its turn, or for its time.
    Enqueued,
    /// Its handler runs.
    Processing,
    /// It failed, and waits to be tried again.
    Retrying,
    /// It was given up.
    DeadLettered,
}

impl Stage {
    /// The stage of a state; `None` for those that are over.
    pub fn of(state: State) -> Option<Self> {
        match state {
            State::Scheduled | State::Deferred | State::Ready => Some(Self::Enqueued),
            State::Processing => Some(Self::Processing),
            State::Retrying => Some(Self::Retrying),
            State::Dead => Some(Self::DeadLettered),
            State::Discarded | State::Cancelled | State::Done => None,
        }
    }
}

/// One message, as people see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// The message.
    pub id: MessageId,
    /// Its type.
    pub kind: TypeName,
    /// Its topic.
    pub topic: Text,
    /// Its subscription; `None` for a publish that waits.
    pub subscription: Option<Text>,
    /// Where it stands.
    pub stage: Stage,
    /// How often it was tried again.
    pub retry_count: u32,
    /// Why it last failed.
    pub last_error: Option<Text>,
    /// When it is due next, if it waits.
    pub next_retry_at: Option<Timestamp>,
    /// When it came here.
    pub enqueued_at: Timestamp,
    /// When its handler was started.
    pub processing_started_at: Option<Timestamp>,
    /// It has been processing for longer than its timeout.
    pub hung: bool,
}

/// Sees every message of an engine. Cheap to clone.
#[derive(Clone)]
pub struct Monitor(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    ledgers: Vec<Arc<dyn Ledger>>,
    pumps: Mutex<Vec<Pump>>,
}

impl Monitor {
    /// One that sees nothing, for tests of what only holds one.
    pub fn empty(clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, vec![])
    }

    pub(crate) fn new(clock: Arc<dyn Clock>, ledgers: Vec<Arc<dyn Ledger>>) -> Self {
        Self(Arc::new(Inner { clock, ledgers, pumps: Mutex::default() }))
    }

    pub(crate) fn watch(&self, pump: Pump) {
        let mut pumps = self.0.pumps.lock().unwrap_or_else(PoisonError::into_inner);
        pumps.retain(|pump| !pump.has_stopped());
        pumps.push(pump);
    }

    /// Every pump, in the order in which they were started. One that has stopped is forgotten when the next is started.
    pub fn pumps(&self) -> Vec<Pump> {
        self.0.pumps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the handlers of this process have in their hands, blocking ones included that were given up and have not
    /// come back.
    pub fn in_flight(&self) -> Vec<Seen> {
        let (now, elapsed) = (self.0.clock.now(), self.0.clock.elapsed());
        let pumps = self.pumps();
        let mut seen = vec![];
        for pump in &pumps {
            for seat in pump.shared.seats() {
                seen.extend(seat.slots.lock().iter().map(|slot| live(&pump.shared, slot, now, elapsed)));
                let abandoned = seat.abandoned.lock();
                seen.extend(
                    abandoned
                        .values()
                        .map(|slot| Seen { hung: true, ..live(&pump.shared, slot, now, elapsed) }),
                );
            }
        }
        seen
    }

    /// Messages that have been processing for longer than their timeout.
    pub fn hung(&self) -> Vec<Seen> {
        self.in_flight().into_iter().filter(|seen| seen.hung).collect()
    }

    /// What is in flight, waits, or is dead: up to `limit` of what is not in flight. What a transport without a ledger
    /// holds itself cannot be listed, what waits for it in a store can.
    pub async fn list(&self, limit: usize) -> Result<Vec<Seen>> {
        let mut seen = self.in_flight();
        let states = vec![State::Scheduled, State::Ready, State::Deferred, State::Retrying, State::Dead];
        for ledger in &self.0.ledgers {
            let query = RecordQuery { states: states.clone(), limit, ..RecordQuery::default() };
            seen.extend(ledger.list(query).await?.items.into_iter().filter_map(recorded));
        }
        Ok(seen)
    }

    /// Everything that is known about a message: a record for each subscription that has or had it, and one for it as
    /// a whole while it waits. Empty if it is not known.
    pub async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        self.check()?;
        let mut records = vec![];
        for ledger in &self.0.ledgers {
            records.extend(ledger.get(id).await?);
        }
        Ok(records)
    }

    /// How many messages there are in each state, as far as they can be listed.
    pub async fn counts(&self) -> Result<Vec<Count>> {
        let mut counts = vec![];
        for ledger in &self.0.ledgers {
            counts.extend(ledger.counts().await?);
        }
        Ok(counts)
    }

    /// For each subscription with messages that are ready, when the first of them became due, as far as that can be
    /// known.
    pub async fn oldest_ready(&self) -> Result<Vec<Oldest>> {
        let mut oldest = vec![];
        for ledger in &self.0.ledgers {
            oldest.extend(ledger.oldest_ready().await?);
        }
        Ok(oldest)
    }

    /// Dead letters with their payload, up to `limit`.
    pub async fn dead(&self, limit: usize) -> Result<Vec<Record>> {
        self.check()?;
        let mut dead = vec![];
        for ledger in &self.0.ledgers {
            let query = RecordQuery { states: vec![State::Dead], limit, ..RecordQuery::default() };
            dead.extend(ledger.list(query).await?.items);
        }
        Ok(dead)
    }

    /// Sends a dead letter back to its own subscription, with another body if there is one. Both counts start anew.
    pub async fn replay(&self, id: impl Into<MessageId>, body: Option<Bytes>, by: &str) -> Result<Changed> {
        self.change(&id.into(), Change::Replay(body), by).await
    }

    /// Drops a dead letter for good.
    pub async fn clear(&self, id: impl Into<MessageId>, by: &str) -> Result<Changed> {
        self.change(&id.into(), Change::Discard, by).await
    }

    /// Changes every record that a query finds, page by page, and says how many were changed. What comes to be after it
    /// has begun is not touched. Cancelling all that waits under a business key is one of these.
    pub async fn change_all(&self, query: RecordQuery, change: Change, by: &str) -> Result<Tally> {
        self.check()?;
        let (begun, mut tally) = (self.0.clock.now(), Tally::default());
        for ledger in &self.0.ledgers {
            let mut query = RecordQuery { limit: PAGE, ..query.clone() };
            loop {
                let page = ledger.list(query.clone()).await?;
                for record in page.items.into_iter().filter(|record| record.created_at <= begun) {
                    let subscription = record.subscription.as_deref();
                    for answer in ledger.change(&record.message.id, subscription, change.clone(), by).await? {
                        match answer.changed {
                            Changed::Done => tally.changed += 1,
                            Changed::TooLate => tally.too_late += 1,
                            Changed::NotFound => {}
                        }
                    }
                }
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
        }
        Ok(tally)
    }

    async fn change(&self, id: &MessageId, change: Change, by: &str) -> Result<Changed> {
        self.check()?;
        let mut answers: Vec<Answer> = vec![];
        for ledger in &self.0.ledgers {
            answers.extend(ledger.change(id, None, change.clone(), by).await?);
        }
        Ok(best(answers.into_iter().map(|answer| answer.changed)))
    }

    fn check(&self) -> Result<()> {
        if !self.0.ledgers.is_empty() {
            return Ok(());
        }
        let text = "this transport keeps no ledger, so its dead letters cannot be listed or changed here: read its \
                    dead-letter topic with a consumer, and replay what it delivers";
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

/// What a bulk change came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Records that were changed.
    pub changed: u64,
    /// Records for which it came too late.
    pub too_late: u64,
}

/// Records looked at in one step of a bulk change.
const PAGE: usize = 500;

fn is_waiting(state: State) -> bool {
    matches!(state, State::Scheduled | State::Deferred | State::Retrying)
}

/// Of several answers about one message, the one that tells most.
pub(crate) fn best(answers: impl IntoIterator<Item = Changed>) -> Changed {
    answers.into_iter().fold(Changed::NotFound, |best, answer| match (best, answer) {
        (Changed::Done, _) | (_, Changed::Done) => Changed::Done,
        (Changed::TooLate, _) | (_, Changed::TooLate) => Changed::TooLate,
        _ => Changed::NotFound,
    })
}

fn live(pump: &PumpShared, slot: &Slot, now: Timestamp, elapsed: Duration) -> Seen {
    let wall = |at: Duration| Timestamp(now.0.saturating_sub(elapsed.saturating_sub(at).as_millis() as i64));
    Seen {
        id: slot.message.id.clone(),
        kind: slot.message.kind.clone(),
        topic: pump.settings.topic.clone(),
        subscription: Some(pump.settings.name.clone()),
        stage: if slot.started.is_some() { Stage::Processing } else { Stage::Enqueued },
        retry_count: slot.message.attempts.failed,
        last_error: slot.message.headers.get_text(wire::LAST_ERROR).map(Text::from),
        next_retry_at: None,
        enqueued_at: slot.enqueued.unwrap_or_else(|| wall(slot.received)),
        processing_started_at: slot.started.map(|started| wall(started.at)),
        hung: slot.started.is_some_and(|started| elapsed.saturating_sub(started.at) > started.timeout),
    }
}

fn recorded(record: Record) -> Option<Seen> {
    let to = wire::TO_TOPIC;
    let headers = &record.message.headers;
    // What waits in a store for another broker belongs to where it goes.
    let (topic, subscription) = match headers.get_text(to) {
        Some(topic) => (topic.into(), headers.get_text(wire::TO_SUBSCRIPTION).map(Text::from)),
        None => (record.topic, record.subscription),
    };
    Some(Seen {
        stage: Stage::of(record.state)?,
        retry_count: record.message.attempts.failed,
        last_error: record.error.or_else(|| headers.get_text(wire::LAST_ERROR).map(Text::from)),
        next_retry_at: record.due.filter(|_| is_waiting(record.state)),
        enqueued_at: record.created_at,
        processing_started_at: None,
        hung: false,
        kind: record.message.kind.clone(),
        id: record.message.id.clone(),
        topic,
        subscription,
    })
}
