//! Who knows what: the ledger of the transport, and that of the store behind it.
//!
//! A store knows what waits in it, what was parked in it, and that it has forwarded the rest. What became of the rest
//! it does not know: where the transport keeps no ledger itself, such a question is refused, and never answered by
//! "there is nothing".

use crate::delay::FORWARD_TOPIC;
use dwell_core::{
    Answer, Change, Changed, Count, Error, ErrorKind, Ledger, MessageId, Of, Oldest, Record, RecordQuery,
    Result, State, Text,
};
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) transport: Option<Arc<dyn Ledger>>,
    pub(crate) store: Option<Arc<dyn Ledger>>,
    /// The transport holds messages that are not yet due, and cannot list them.
    pub(crate) hides_what_waits: bool,
}

impl Books {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<dyn Ledger>> {
        self.transport.iter().chain(&self.store)
    }

    /// What this query finds wherever anything can be listed.
    pub(super) async fn list(&self, query: &RecordQuery) -> Result<Vec<Record>> {
        let mut records = vec![];
        for ledger in self.all() {
            records.extend(ledger.list(query.clone()).await?.items);
        }
        Ok(records)
    }

    pub(super) async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        let mut records = vec![];
        for ledger in self.all() {
            records.extend(ledger.get(id).await?);
        }
        // Unless that is all that a transport which should know better leaves us with: it may be arriving just now.
        if self.transport.is_none() || !records.iter().all(is_forwarded) {
            records.retain(|record| !is_forwarded(record));
        }
        if records.is_empty() && self.transport.is_none() {
            return Err(unsupported(format!(
                "this transport keeps no ledger, so nobody can say what became of the message {id}: only what is in \
                 flight here, and what waits in a store, can be looked up"
            )));
        }
        Ok(records)
    }

    pub(super) async fn counts(&self) -> Result<Vec<Count>> {
        self.check_any()?;
        let mut counts = vec![];
        for ledger in self.all() {
            counts.extend(ledger.counts().await?);
        }
        counts.retain(|count| !has_forwarded(&count.topic, count.state));
        Ok(counts)
    }

    pub(super) async fn oldest_ready(&self) -> Result<Vec<Oldest>> {
        self.check_any()?;
        let mut oldest = vec![];
        for ledger in self.all() {
            oldest.extend(ledger.oldest_ready().await?);
        }
        Ok(oldest)
    }

    pub(super) async fn dead(&self, limit: usize) -> Result<Vec<Record>> {
        self.check_dead()?;
        self.list(&RecordQuery { states: vec![State::Dead], limit, ..RecordQuery::default() }).await
    }

    /// Replays or drops a dead letter. What was parked in the store is found there.
    pub(super) async fn change(&self, id: &MessageId, change: Change, by: &str) -> Result<Changed> {
        let mut answers: Vec<Answer> = vec![];
        for ledger in self.all() {
            answers.extend(ledger.change(id, Of::All, change.clone(), by).await?);
        }
        match best(answers.into_iter().map(|answer| answer.changed)) {
            Changed::Done => Ok(Changed::Done),
            changed => self.check_dead().map(|()| changed),
        }
    }

    /// Whether all that such a change is for can be found.
    pub(super) fn check(&self, change: &Change) -> Result<()> {
        match change {
            Change::Replay(_) | Change::Discard => self.check_dead(),
            Change::Cancel | Change::Reschedule(_) if self.transport.is_none() && self.hides_what_waits => {
                Err(hidden())
            }
            Change::Cancel | Change::Reschedule(_) => self.check_any(),
        }
    }

    fn check_dead(&self) -> Result<()> {
        if self.transport.is_some() {
            return Ok(());
        }
        Err(unsupported(
            "this transport keeps no ledger, so its dead letters cannot be listed, replayed or cleared here: read them \
             where they lie, in `{topic}.dlq` unless the subscription says otherwise, with any client of the broker; the \
             page of the transport in `docs/transports` says how one is handled again",
        ))
    }

    fn check_any(&self) -> Result<()> {
        if self.all().next().is_some() {
            return Ok(());
        }
        Err(unsupported(
            "this transport keeps no ledger, and there is no store that does: what it holds cannot be counted or looked \
             through, save by the broker's own tools",
        ))
    }
}

/// A store is done with what it has forwarded. The message is not: it is wherever it was forwarded to.
fn has_forwarded(topic: &Text, state: State) -> bool {
    **topic == *FORWARD_TOPIC && state == State::Done
}

fn is_forwarded(record: &Record) -> bool {
    has_forwarded(&record.topic, record.state)
}

/// Of several answers about one message, the one that tells most.
pub(crate) fn best(answers: impl IntoIterator<Item = Changed>) -> Changed {
    answers.into_iter().fold(Changed::NotFound, |best, answer| match (best, answer) {
        (Changed::Done, _) | (_, Changed::Done) => Changed::Done,
        (Changed::TooLate, _) | (_, Changed::TooLate) => Changed::TooLate,
        _ => Changed::NotFound,
    })
}

/// The transport holds what is asked for, and cannot find it.
pub(crate) fn hidden() -> Error {
    unsupported(
        "this transport cannot list or change what waits inside it: set `delay = \"scheduler\"` and `[scheduler] url` to \
         a store that can",
    )
}

fn unsupported(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}
