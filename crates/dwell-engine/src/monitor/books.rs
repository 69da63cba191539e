//! Which questions about messages can be answered.
//!
//! A store knows which messages wait or were parked in it, and that it has forwarded the rest. It does not know what became
//! of those. Where the transport keeps no ledger itself, such a question is refused, and never answered by "there is
//! nothing".

use super::combined::CombinedLedger;
use dwell_core::{
    Change, Changed, Count, Error, ErrorKind, Ledger, MessageId, Of, Oldest, Record, RecordQuery, Result,
    State,
};

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) ledger: CombinedLedger,
    /// The transport holds messages that are not yet due, and cannot list them.
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
                "this transport keeps no ledger, so nobody can say what became of the message {id}: only what is in \
                 flight here, and what waits in a store, can be looked up"
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

    /// Replays or drops a dead letter, also one that was parked in the store.
    pub(super) async fn change(&self, id: &MessageId, change: Change, by: &str) -> Result<Changed> {
        let answers = self.ledger.change(id, Of::All, change, by).await?;
        match best(answers.into_iter().map(|answer| answer.changed)) {
            Changed::Done => Ok(Changed::Done),
            changed => self.check_dead().map(|()| changed),
        }
    }

    /// Whether all that such a change is for can be found.
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
            "this transport keeps no ledger, so its dead letters cannot be listed, replayed or cleared here: read them \
             where they lie, in `{topic}.dlq` unless the subscription says otherwise, with any client of the broker; the \
             page of the transport in `docs/transports` says how one is handled again",
        ))
    }

    fn check_any(&self) -> Result<()> {
        if !self.ledger.is_empty() {
            return Ok(());
        }
        Err(unsupported(
            "this transport keeps no ledger, and there is no store that does: what it holds cannot be counted or looked \
             through, save by the broker's own tools",
        ))
    }
}

/// Of several answers about one message, the one that tells most.
pub(crate) fn best(answers: impl IntoIterator<Item = Changed>) -> Changed {
    answers.into_iter().fold(Changed::NotFound, Changed::or)
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
