//! Ledger of all messages, and the changes that people make to them.

use crate::{
    change,
    fault::Sql,
    file::File,
    flow::CHUNK,
    halt::item,
    handle::Handle,
    page,
    parts::all_parts,
    record::{Found, record},
    tx::{code, state},
};
use dwell_core::{
    Answer, BoxFuture, Change, Count, ErrorKind, Ledger, MessageId, Of, Oldest, Page, Record, RecordQuery,
    Result, State, Text, Timestamp,
};
use rusqlite::Connection;
use std::sync::Arc;

pub(crate) struct SqliteLedger(pub(crate) Arc<Handle>);

impl Ledger for SqliteLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        Box::pin(async move {
            let file = self.0.open()?;
            promote(file).await?;
            let id = id.clone();
            file.read(move |connection| get(connection, &id)).await
        })
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        Box::pin(async move {
            let file = self.0.open()?;
            promote(file).await?;
            page::list(file, query).await
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        Box::pin(async move {
            let file = self.0.open()?;
            promote(file).await?;
            file.read(counts).await
        })
    }

    fn oldest_ready(&self) -> BoxFuture<'_, Result<Vec<Oldest>>> {
        Box::pin(async move {
            let file = self.0.open()?;
            promote(file).await?;
            file.read(oldest_ready).await
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
            let file = self.0.open()?;
            promote(file).await?;
            let order = change::Order { id: id.clone(), of, change, by: by.into() };
            file.write(1, move |tx| item(tx.change(&order))).await?
        })
    }
}

/// Promotes due messages, so that the ledger is up to date even without a consumer. The number is
/// bounded: the caller waits for one transaction, however many messages are due, and the rest is
/// still shown as pending.
pub(crate) async fn promote(file: &File) -> Result<()> {
    let now = file.seams.clock.now();
    if !file.read(move |connection| is_behind(connection, now)).await? {
        return Ok(());
    }
    match file.write(CHUNK, |tx| Ok(tx.take_in()? | tx.promote_any(CHUNK)?)).await {
        // Lack of room is no reason to refuse a read.
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
        promoted => promoted.map(drop),
    }
}

/// Returns whether due messages, or rows of other programs, have not been processed yet.
fn is_behind(connection: &Connection, now: Timestamp) -> Sql<bool> {
    let mut came =
        connection.prepare_cached("SELECT 1 FROM incoming INDEXED BY incoming_open WHERE error IS NULL")?;
    Ok(came.exists([])? || all_parts(connection)?.iter().any(|part| part.first_due <= now))
}

fn get(connection: &Connection, id: &MessageId) -> Sql<Vec<Record>> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        record!(),
        " FROM message INDEXED BY message_id WHERE id = ?1 ORDER BY created_at, number"
    ))?;
    let found = statement.query_map([&*id.0], Found::read)?.collect::<Sql<Vec<_>>>()?;
    found.into_iter().map(|found| found.with_history(connection)).collect()
}

/// Reads only the indexes of ready messages, which contain the due times.
fn oldest_ready(connection: &Connection) -> Sql<Vec<Oldest>> {
    let mut statement = connection.prepare_cached(
        "SELECT topic, subscription, min(
             coalesce((SELECT min(due) FROM message INDEXED BY message_ready WHERE place = tally.home AND phase = 1), ?2),
             coalesce((SELECT min(due) FROM message INDEXED BY message_aside WHERE place = tally.home AND phase = 2), ?2)
         )
         FROM tally JOIN place ON place.id = tally.home
         WHERE state = ?1 AND messages > 0 ORDER BY topic, subscription",
    )?;
    let oldest = statement.query_map((code(State::Ready), i64::MAX), |row| {
        let subscription: Text = row.get(1)?;
        Ok(Oldest {
            topic: row.get(0)?,
            subscription: (!subscription.is_empty()).then_some(subscription),
            due: Timestamp(row.get(2)?),
        })
    })?;
    oldest.collect()
}

fn counts(connection: &Connection) -> Sql<Vec<Count>> {
    let mut statement = connection.prepare_cached(
        "SELECT topic, subscription, state, messages FROM tally JOIN place ON place.id = tally.home
         WHERE messages > 0 ORDER BY topic, subscription, state",
    )?;
    let counts = statement.query_map([], |row| {
        let subscription: Text = row.get(1)?;
        Ok(Count {
            topic: row.get(0)?,
            subscription: (!subscription.is_empty()).then_some(subscription),
            state: state(row.get(2)?),
            count: row.get::<_, i64>(3)?.try_into().unwrap_or(0),
        })
    })?;
    counts.collect()
}
