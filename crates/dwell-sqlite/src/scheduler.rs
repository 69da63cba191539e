//! Control over pending messages.

use crate::{
    accept::content,
    fault::Sql,
    halt::item,
    handle::Handle,
    parts::{Part, all_parts},
    producer::accept,
    row::{COPY, Held, Phase, held, message, read_message},
    tx::{Tx, state},
    waiting::waiting,
};
use dwell_core::{
    Address, BoxFuture, Changed, Due, Entries, Envelope, Error, ErrorKind, OnConflict, Pending, Query,
    Result, ScheduleId, Scheduler, Sent, State, Text, Timestamp,
};
use rusqlite::{Connection, Row, ToSql};
use std::sync::Arc;

/// Name of an entry: see [`ScheduleId::of`].
macro_rules! name_of {
    () => {
        "coalesce(schedule, id || '@' || (SELECT named.topic FROM place named WHERE named.id = message.topic))"
    };
}

pub(crate) struct SqliteScheduler(pub(crate) Arc<Handle>);

impl Scheduler for SqliteScheduler {
    fn schedule(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move { accept(&self.0, &entries).await })
    }

    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move {
            let count = entries.len();
            let begun = async {
                let entries = entries.into_iter().map(|envelope| chosen(envelope, ()));
                let entries = entries.collect::<Result<Vec<_>>>()?;
                let job = self.0.open()?.write(count, move |tx| {
                    let mut begun = Vec::with_capacity(entries.len());
                    for (envelope, content, ()) in &entries {
                        begun.push(item(tx.begin_send(envelope, *content))?);
                    }
                    Ok(begun)
                });
                job.await
            };
            match begun.await {
                Ok(begun) => begun,
                Err(error) => (0..count).map(|_| Err(error.again())).collect(),
            }
        })
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let entries = entries.into_iter().map(|(envelope, sent)| chosen(envelope, sent));
            let entries = entries.collect::<Result<Vec<_>>>()?;
            let job = self.0.open()?.write(entries.len(), move |tx| {
                let mut ended = Ok(());
                for (envelope, content, sent) in &entries {
                    ended = ended.and(item(tx.end_send(envelope, *content, *sent))?);
                }
                Ok(ended)
            });
            job.await?
        })
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let entries = entries.clone();
            let job = self.0.open()?.write(1, move |tx| {
                let by = tx.seams.instance.clone();
                tx.change_waiting(&entries, |tx, held| tx.cancel(held, Some(&by)))
            });
            job.await
        })
    }

    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            let entries = entries.clone();
            let job = self.0.open()?.write(1, move |tx| {
                let (due, by) = (tx.resolve(due), tx.seams.instance.clone());
                tx.change_waiting(&entries, |tx, held| tx.reschedule(held, due, Some(&by)))
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

/// Returns an envelope with its content hash and its companion value.
fn chosen<T>(envelope: Envelope, with: T) -> Result<(Envelope, u128, T)> {
    match content(&envelope) {
        Some(content) => Ok((envelope, content, with)),
        None => {
            let text = "only a send with a user-chosen id is recorded: set `once` on the envelope";
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

impl Tx<'_> {
    /// Changes these pending entries, and returns the best result.
    fn change_waiting(
        &mut self,
        entries: &Entries,
        change: impl Fn(&mut Self, &Held) -> Sql<()>,
    ) -> Sql<Changed> {
        let waiting: Vec<(Held, String)> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                ", ",
                name_of!(),
                " FROM message INDEXED BY message_id WHERE id = ?1 AND phase = 0"
            ))?;
            let waiting = statement
                .query_map([&*entries.message.0], |row| Ok((Held::read(row)?, row.get(Held::COLUMNS)?)))?;
            waiting.collect::<Sql<_>>()?
        };
        let (mut is_changed, mut is_late) = (false, false);
        for (held, name) in waiting {
            if !entries.may_be_in(&self.places().topics[&held.topic].name) {
                continue;
            }
            if held.due > self.now && !ScheduleId::is_too_late(&name) {
                change(self, &held)?;
                is_changed = true;
            } else {
                // Due, but not promoted yet; a dead letter; or it may have been sent.
                is_late = true;
            }
        }
        match is_changed {
            true => Ok(Changed::Done),
            false if is_late || self.is_known(entries)? => Ok(Changed::TooLate),
            false => Ok(Changed::NotFound),
        }
    }

    /// Whether one of these entries has fired, or may have been sent at once under an id of the
    /// user's own.
    fn is_known(&self, entries: &Entries) -> Sql<bool> {
        let id = &*entries.message.0;
        let names: Vec<(i64, Option<String>)> = {
            // The names of a message sort between `{id}@` and `{id}A`: `A` follows `@`. A plain
            // publish may be known by its row alone.
            let mut statement = self.sql(
                "SELECT topic, name FROM known WHERE name = ?1
                 UNION SELECT topic, name FROM known WHERE name >= ?1 || '@' AND name < ?1 || 'A'
                 UNION SELECT topic, NULL FROM message INDEXED BY message_id WHERE id = ?1 AND fired = 1",
            )?;
            let names = statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
            names.collect::<Sql<_>>()?
        };
        for (topic, name) in names {
            let of = &self.places().topics[&topic].name;
            let name = match name {
                Some(name) if name != id && self.message_of_known(topic, &name) == id => {
                    ScheduleId::from(name)
                }
                Some(name) if name != id => continue,
                Some(_) | None => ScheduleId::of_publish(id, of),
            };
            if entries.may_be_in(of) && self.known(topic, &name.0)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Cancels a pending message and keeps a record of it.
    pub(crate) fn cancel(&mut self, held: &Held, by: Option<&str>) -> Sql<()> {
        debug_assert_eq!(held.phase, Phase::Waits);
        self.end(held, State::Cancelled, crate::row::Because { by, ..Default::default() })
    }

    /// Changes the due time of a pending message.
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

/// Returns one page of pending messages: the first messages of each part are merged, and the first
/// of those are returned.
fn pending(connection: &Connection, query: &Query, now: Timestamp) -> Sql<Vec<Pending>> {
    let mut found: Vec<Place> = match &query.message {
        Some(id) => of_message(connection, query, &id.0, now)?,
        None => {
            let mut found = Vec::new();
            for part in all_parts(connection)? {
                if !is_meant(connection, query, part.topic)? {
                    continue;
                }
                found.extend(in_part(connection, query, &part, now)?);
            }
            found
        }
    };
    // Two topics may have the same id; the stable sort keeps the older topic first.
    found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    found.truncate(query.limit);
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        name_of!(),
        ", due, once, state, (SELECT topic FROM place WHERE place.id = message.place),
            (SELECT subscription FROM place WHERE place.id = message.place), ",
        message!(),
        " FROM message WHERE number = ?1"
    ))?;
    found.into_iter().map(|(_, number)| statement.query_row([number], read)).collect()
}

/// Position of a pending message, by due time and name, and its number.
type Place = ((i64, String), i64);

/// Query for the [`Place`]s of pending messages.
macro_rules! pending {
    ($found:expr, $due:expr) => {
        concat!(
            "SELECT due, ",
            name_of!(),
            ", number FROM ",
            $found,
            " AND phase = 0 AND (",
            $due,
            ", ",
            name_of!(),
            ") > (:after, :name) AND (:key IS NULL OR key = :key)
              AND (:to IS NULL OR coalesce(destination, (
                  SELECT CASE p.subscription WHEN '' THEN p.topic ELSE p.topic || '/' || p.subscription END
                  FROM place p WHERE p.id = message.place
              )) = :to)
              ORDER BY ",
            $due,
            ", ",
            name_of!(),
            " LIMIT :limit"
        )
    };
}

fn in_part(connection: &Connection, query: &Query, part: &Part, now: Timestamp) -> Sql<Vec<Place>> {
    let sql = pending!(concat!(waiting!(), " WHERE in_topic = :topic AND in_part = :part"), "due_at");
    list(connection, sql, &[(":topic", &part.topic), (":part", &part.id)], query, now)
}

fn of_message(connection: &Connection, query: &Query, id: &str, now: Timestamp) -> Sql<Vec<Place>> {
    let sql = pending!("message INDEXED BY message_id WHERE id = :id AND topic = :topic", "due");
    let topics = connection
        .prepare_cached(
            "SELECT DISTINCT topic FROM message INDEXED BY message_id WHERE id = ?1 AND phase = 0",
        )?
        .query_map([id], |row| row.get(0))?
        .collect::<Sql<Vec<i64>>>()?;
    let mut found = Vec::new();
    for topic in topics {
        if is_meant(connection, query, topic)? {
            found.extend(list(connection, sql, &[(":id", &id), (":topic", &topic)], query, now)?);
        }
    }
    Ok(found)
}

/// Returns whether the query includes entries of this topic.
fn is_meant(connection: &Connection, query: &Query, topic: i64) -> Sql<bool> {
    let name: String = connection
        .prepare_cached("SELECT topic FROM place WHERE id = ?1")?
        .query_row([topic], |row| row.get(0))?;
    Ok(query.may_be_in(&name))
}

fn list(
    connection: &Connection,
    sql: &str,
    of: &[(&str, &dyn ToSql)],
    query: &Query,
    now: Timestamp,
) -> Sql<Vec<Place>> {
    // Due messages are not pending, even before they are promoted. No name is empty.
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
    let once = row.get::<_, Option<u8>>(2)?.filter(|code| *code != COPY).map(|code| match code {
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
