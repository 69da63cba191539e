//! Which queries the ledgers can answer.
//!
//! A store knows which messages are pending or parked in it, and that it has forwarded the others.
//! It does not know what happened to those. If the transport has no ledger, such a query is refused
//! rather than answered with an empty result.

use super::combined::CombinedLedger;
use dwell_core::{
    Change, Changed, Count, Error, ErrorKind, Ledger, MessageId, Of, Oldest, Record, RecordQuery, Result,
    State,
};

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) ledger: CombinedLedger,
    /// Whether the transport holds pending messages that it cannot list.
    pub(crate) hides_what_waits: bool,
}

impl Books {
    pub(super) async fn list(&self, mut query: RecordQuery) -> Result<Vec<Record>> {
        let (limit, mut items) = (query.limit, vec![]);
        loop {
            query.limit = limit - items.len();
            let page = self.ledger.list(query.clone()).await?;
            items.extend(page.items);
            match page.next {
                Some(next) if items.len() < limit => query.after = Some(next),
                _ => return Ok(items),
            }
        }
    }

    pub(super) async fn get(&self, id: &MessageId) -> Result<Vec<Record>> {
        let records = self.ledger.get(id).await?;
        if records.is_empty() && self.ledger.transport.is_none() {
            return Err(unsupported(format!(
                "this transport has no ledger, so the state of the message {id} is unknown: only messages in flight in \
                 this process and pending messages in a store can be looked up"
            )));
        }
        Ok(records)
    }

    pub(super) async fn counts(&self) -> Result<Vec<Count>> {
        self.check_any()?;
        self.ledger.counts().await
    }

    pub(super) async fn oldest_ready(&self) -> Result<Vec<Oldest>> {
        self.check_any()?;
        self.ledger.oldest_ready().await
    }

    pub(super) async fn dead(&self, limit: usize) -> Result<Vec<Record>> {
        self.check_dead()?;
        self.list(RecordQuery { states: vec![State::Dead], limit, ..RecordQuery::default() }).await
    }

    /// Replays or drops a dead letter, which may be parked in the store.
    pub(super) async fn change(&self, id: &MessageId, change: Change, by: &str) -> Result<Changed> {
        let answers = self.ledger.change(id, Of::All, change, by).await?;
        match best(answers.into_iter().map(|answer| answer.changed)) {
            Changed::Done => Ok(Changed::Done),
            changed => self.check_dead().map(|()| changed),
        }
    }

    /// Checks whether all messages for such a change can be found.
    pub(super) fn check(&self, change: &Change) -> Result<()> {
        match change {
            Change::Replay(_) | Change::Discard => self.check_dead(),
            Change::Cancel | Change::Reschedule(_)
                if self.ledger.transport.is_none() && self.hides_what_waits =>
            {
                Err(hidden())
            }
            Change::Cancel | Change::Reschedule(_) => self.check_any(),
        }
    }

    fn check_dead(&self) -> Result<()> {
        if self.ledger.transport.is_some() {
            return Ok(());
        }
        Err(unsupported(
            "this transport has no ledger, so its dead letters cannot be listed, replayed or cleared here: read them from \
             their topic (`{topic}.dlq` unless the subscription has another one) with a client of the broker; the page of \
             the transport in `docs/transports` describes how to handle one again",
        ))
    }

    fn check_any(&self) -> Result<()> {
        if !self.ledger.is_empty() {
            return Ok(());
        }
        Err(unsupported(
            "this transport has no ledger, and there is no store with one: use the broker's own tools to count or search \
             its messages",
        ))
    }
}

/// Returns the most informative of several results for one message.
pub(crate) fn best(answers: impl IntoIterator<Item = Changed>) -> Changed {
    answers.into_iter().fold(Changed::NotFound, Changed::or)
}

/// The answer of one of two holders. What the other has done is done: then an error is logged and
/// not returned, because a repeated call would find nothing left to change.
pub(crate) fn unless_done<T>(answer: Result<T>, is_done: bool, id: &MessageId) -> Result<Option<T>> {
    match answer {
        Err(error) if is_done => {
            tracing::warn!(%id, %error, "change succeeded in one of two holders and failed in the other");
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

/// The transport holds what is asked for, and cannot find it.
pub(crate) fn hidden() -> Error {
    unsupported(
        "this transport cannot list or change its pending messages: set `delay = \"scheduler\"` and `[scheduler] url` \
         to a store that can",
    )
}

fn unsupported(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}
