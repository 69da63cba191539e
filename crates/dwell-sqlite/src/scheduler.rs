//! Control over what waits.

use crate::{
    fault::Sql,
    handle::Handle,
    parts::{Part, all_parts},
    producer::accept,
    row::{Held, Phase, held, message, read_message},
    tx::{Tx, state},
    waiting::waiting,
};
use dwell_core::{
    Address, BoxFuture, Changed, Due, Envelope, OnConflict, Pending, Query, Result, ScheduleId, Scheduler,
    Sent, State, Text, Timestamp,
};
use rusqlite::{Connection, Row, ToSql};
use std::sync::Arc;

pub(crate) struct SqliteScheduler(pub(crate) Arc<Handle>);

impl Scheduler for SqliteScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move { accept(&self.0, &entries).await })
    }

    fn cancel<'a>(&'a self, id: &'a ScheduleId) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let id = id.clone();
            let job = self.0.open()?.write(1, move |tx| {
                let by = tx.seams.instance.clone();
                tx.change_waiting(&id, |tx, held| tx.cancel(held, Some(&by)))
            });
            job.await
        })
    }

    fn reschedule<'a>(&'a self, id: &'a ScheduleId, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let id = id.clone();
            let job = self.0.open()?.write(1, move |tx| {
                let (due, by) = (due.resolve(tx.now), tx.seams.instance.clone());
                tx.change_waiting(&id, |tx, held| tx.reschedule(held, due, Some(&by)))
            });
            job.await
        })
    }

    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        Box::pin(async move {
            let file = self.0.open()?;
            let now = file.seams.clock.now();
            file.read(move |connection| pending(connection, &query, now)).await
        })
    }
}

impl Tx<'_> {
    /// Changes what waits under this id, in every topic, and gives the best answer.
    fn change_waiting(
        &mut self,
        id: &ScheduleId,
        change: impl Fn(&mut Self, &Held) -> Sql<()>,
    ) -> Sql<Changed> {
        let waiting: Vec<Held> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_id WHERE id = ?1 AND phase = 0 AND schedule IS NULL
                 UNION ALL SELECT ",
                held!(),
                " FROM message INDEXED BY message_schedule WHERE schedule = ?1"
            ))?;
            let waiting = statement.query_map([&*id.0], Held::read)?;
            waiting.collect::<Sql<_>>()?
        };
        let mut best = Changed::NotFound;
        for held in waiting {
            if held.due > self.now {
                change(self, &held)?;
                best = Changed::Done;
            } else if best == Changed::NotFound {
                // Due, and only not yet moved on.
                best = Changed::TooLate;
            }
        }
        if best == Changed::NotFound && self.is_known(id)? {
            best = Changed::TooLate;
        }
        Ok(best)
    }

    fn is_known(&self, id: &ScheduleId) -> Sql<bool> {
        let topics: Vec<i64> = {
            let mut statement = self.sql(
                "SELECT topic FROM known WHERE id = ?1
                 UNION SELECT topic FROM message INDEXED BY message_id WHERE id = ?1 AND fired = 1",
            )?;
            let topics = statement.query_map([&*id.0], |row| row.get(0))?;
            topics.collect::<Sql<_>>()?
        };
        for topic in topics {
            if self.known(topic, &id.0)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What waits will never fire, and is remembered as cancelled.
    pub(crate) fn cancel(&mut self, held: &Held, by: Option<&str>) -> Sql<()> {
        debug_assert_eq!(held.phase, Phase::Waits);
        self.end(held, State::Cancelled, crate::row::Because { by, ..Default::default() })
    }

    /// What waits is due then.
    pub(crate) fn reschedule(&mut self, held: &Held, due: Timestamp, by: Option<&str>) -> Sql<()> {
        self.write_past(held.number, held.step)?;
        let step = self.next();
        let (part, left) = self.wait_instead(held, due)?;
        self.sql(
            "UPDATE message SET due = ?2, part = ?3, was_part = ?4, was_due = ?5, step = ?6, updated_at = ?7, changed_by = ?8
             WHERE number = ?1",
        )?
        .execute((
            held.number,
            due.0,
            part,
            left.map(|(part, _)| part),
            left.map(|(_, due)| due.0),
            step,
            self.now.0,
            by,
        ))?;
        self.expect(held.topic, due);
        Ok(())
    }
}

/// One page of what waits: of each part the first, put together, and of those the first.
fn pending(connection: &Connection, query: &Query, now: Timestamp) -> Sql<Vec<Pending>> {
    let mut found: Vec<Place> = match &query.message {
        Some(id) => of_message(connection, query, &id.0, now)?,
        None => {
            let mut found = Vec::new();
            for part in all_parts(connection)? {
                found.extend(in_part(connection, query, &part, now)?);
            }
            found
        }
    };
    // Two topics may hold one id; then the older topic comes first, as it was found.
    found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    found.truncate(query.limit);
    let mut statement = connection.prepare_cached(concat!(
        "SELECT coalesce(schedule, id), due, once, state, (SELECT topic FROM place WHERE place.id = message.place),
            (SELECT subscription FROM place WHERE place.id = message.place), ",
        message!(),
        " FROM message WHERE number = ?1"
    ))?;
    found.into_iter().map(|(_, number)| statement.query_row([number], read)).collect()
}

/// Where a message stands in the order of what waits, by its due time and the name that it waits under; and its number.
type Place = ((i64, String), i64);

/// The [`Place`]s of what waits.
macro_rules! pending {
    ($found:expr, $due:expr) => {
        concat!(
            "SELECT due, coalesce(schedule, id), number FROM ",
            $found,
            " AND phase = 0 AND (",
            $due,
            ", coalesce(schedule, id)) > (:after, :name) AND (:key IS NULL OR key = :key)
              AND (:to IS NULL OR coalesce(destination, (
                  SELECT CASE p.subscription WHEN '' THEN p.topic ELSE p.topic || '/' || p.subscription END
                  FROM place p WHERE p.id = message.place
              )) = :to)
              ORDER BY ",
            $due,
            ", coalesce(schedule, id) LIMIT :limit"
        )
    };
}

fn in_part(connection: &Connection, query: &Query, part: &Part, now: Timestamp) -> Sql<Vec<Place>> {
    let sql = pending!(concat!(waiting!(), " WHERE in_topic = :topic AND in_part = :part"), "due_at");
    list(connection, sql, &[(":topic", &part.topic), (":part", &part.id)], query, now)
}

fn of_message(connection: &Connection, query: &Query, id: &str, now: Timestamp) -> Sql<Vec<Place>> {
    list(
        connection,
        pending!("message INDEXED BY message_id WHERE id = :id", "due"),
        &[(":id", &id)],
        query,
        now,
    )
}

fn list(
    connection: &Connection,
    sql: &str,
    of: &[(&str, &dyn ToSql)],
    query: &Query,
    now: Timestamp,
) -> Sql<Vec<Place>> {
    // What is due does not wait, even if nobody has moved it on yet. No name is empty.
    let first = (now.0.saturating_add(1), "");
    let (after, name) = query.after.as_ref().map_or(first, |(due, id)| (due.0, &*id.0).max(first));
    let mut statement = connection.prepare_cached(sql)?;
    let to = query.to.as_ref().map(Address::to_string);
    let (key, limit) = (query.key.as_deref(), i64::try_from(query.limit).unwrap_or(i64::MAX));
    let mut values: Vec<(&str, &dyn ToSql)> =
        vec![(":after", &after), (":name", &name), (":key", &key), (":to", &to), (":limit", &limit)];
    values.extend(of);
    let found = statement.query_map(&values[..], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))?;
    found.collect()
}

fn read(row: &Row<'_>) -> Sql<Pending> {
    let (topic, name): (Text, Text) = (row.get(4)?, row.get(5)?);
    let to = match name.is_empty() {
        true => Address::Topic(topic),
        false => Address::Subscription { topic, name },
    };
    let once = row.get::<_, Option<u8>>(2)?.map(|code| match code {
        1 => OnConflict::Fail,
        _ => OnConflict::Replace,
    });
    let due = Timestamp(row.get(1)?);
    let envelope = Envelope {
        to,
        due: Due::At(due),
        once,
        copy: once.is_none() && state(row.get(3)?) != State::Scheduled,
        message: read_message(row, 6)?,
    };
    Ok(Pending { id: ScheduleId(row.get(0)?), due, envelope })
}
