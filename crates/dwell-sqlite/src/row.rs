//! Rows of the table `message`: their form and their access.

use crate::{
    fault::Sql,
    tx::{Tx, code, state},
};
use bytes::Bytes;
use dwell_core::{
    Attempts, ContentType, Headers, Message, MessageFields, MessageId, OnConflict, State, Text, Timestamp,
    wire,
};
use rusqlite::{OptionalExtension, Row, params, types::ValueRef};

/// Position of a message in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Waits = 0,
    Ready = 1,
    /// Ready, but another consumer leases a message with its key.
    Aside = 2,
    Leased = 3,
    Over = 4,
}

impl Phase {
    fn of(code: u8) -> Self {
        match code {
            0 => Self::Waits,
            1 => Self::Ready,
            2 => Self::Aside,
            3 => Self::Leased,
            _ => Self::Over,
        }
    }
}

/// Bodies longer than this are stored in a separate table, so that a change of the message does not
/// rewrite them. The rest of the row fits into one page; otherwise it would continue on an overflow
/// page, which is rewritten too.
const INLINE: usize = 1024;

/// New message, before it is written.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) topic: i64,
    pub(crate) place: i64,
    pub(crate) home: i64,
    pub(crate) phase: Phase,
    pub(crate) state: State,
    /// Name under which it is pending.
    pub(crate) schedule: Option<&'a str>,
    pub(crate) due: Timestamp,
    pub(crate) chosen: Option<Chosen>,
    /// Set for a copy, which a repeated settlement sends again.
    pub(crate) is_copy: bool,
    pub(crate) problem: Option<&'a str>,
    pub(crate) content: &'a Content<'a>,
}

/// Options of a send whose id was chosen by the user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Action if the id is already known.
    pub(crate) on_conflict: OnConflict,
    /// Hash of the content.
    pub(crate) content: u128,
}

/// Message, with its headers in their stored form.
pub(crate) struct Content<'a> {
    pub(crate) message: &'a Message,
    headers: Option<String>,
    destination: Option<String>,
}

impl<'a> Content<'a> {
    pub(crate) fn of(message: &'a Message) -> Self {
        let headers = message.headers.to_json();
        let destination = message.headers.get_text(wire::TO_TOPIC).map(|topic| {
            let name = message.headers.get_text(wire::TO_SUBSCRIPTION);
            name.map_or_else(|| topic.to_owned(), |name| format!("{topic}/{name}"))
        });
        Self { message, headers, destination }
    }

    fn is_large(&self) -> bool {
        self.message.body.len() > INLINE
    }

    fn inline(&self) -> Option<&[u8]> {
        (!self.is_large()).then_some(&self.message.body)
    }
}

/// State of a row that is needed to change it.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) number: i64,
    pub(crate) topic: i64,
    pub(crate) place: i64,
    pub(crate) home: i64,
    pub(crate) phase: Phase,
    pub(crate) state: State,
    pub(crate) step: i64,
    pub(crate) due: Timestamp,
    pub(crate) deliveries: u32,
    pub(crate) key: Option<Bytes>,
    pub(crate) id: Text,
    pub(crate) updated_at: Timestamp,
    /// Set if its sender chose its id.
    pub(crate) is_chosen: bool,
    /// Set if it was a pending plain publish that has fired: its name is remembered by this row
    /// alone.
    pub(crate) has_fired: bool,
    /// Set if its body is stored in a separate table.
    is_large: bool,
    /// Part that contains its entry while it is pending.
    pub(crate) part: i64,
    /// Entry from before it was rescheduled, which may still exist.
    pub(crate) left: Option<(i64, Timestamp)>,
}

/// Columns of [`Held`], in its order.
macro_rules! held {
    () => {
        "number, topic, place, home, phase, state, step, due, deliveries, key, id, updated_at, content IS NOT NULL,
         fired IS NOT NULL, body IS NULL, coalesce(part, 0), was_part, was_due"
    };
}
pub(crate) use held;

impl Held {
    /// Number of its columns.
    pub(crate) const COLUMNS: usize = 18;

    pub(crate) fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self {
            number: row.get(0)?,
            topic: row.get(1)?,
            place: row.get(2)?,
            home: row.get(3)?,
            phase: Phase::of(row.get(4)?),
            state: state(row.get(5)?),
            step: row.get(6)?,
            due: Timestamp(row.get(7)?),
            deliveries: row.get(8)?,
            key: read_bytes(row, 9)?,
            id: row.get(10)?,
            updated_at: Timestamp(row.get(11)?),
            is_chosen: row.get(12)?,
            has_fired: row.get(13)?,
            is_large: row.get(14)?,
            part: row.get(15)?,
            left: row.get::<_, Option<i64>>(16)?.zip(row.get::<_, Option<i64>>(17)?.map(Timestamp)),
        })
    }

    /// Returns the value of the column `fired`.
    pub(crate) fn fired_code(&self) -> Option<u8> {
        self.has_fired.then_some(1)
    }
}

/// Columns of a [`Message`], in the order of [`read_message`].
macro_rules! message {
    () => {
        "id, type, key, content_type, sent_at, handled, failed, headers,
         coalesce(body, (SELECT body FROM payload WHERE payload.message = message.number))"
    };
}
pub(crate) use message;

/// Reads the message in the columns from `at` on.
pub(crate) fn read_message(row: &Row<'_>, at: usize) -> Sql<Message> {
    let headers = match row.get_ref(at + 7)? {
        ValueRef::Null => Headers::default(),
        json => Headers::from_json(json.as_str()?).map_err(|problem| {
            rusqlite::Error::FromSqlConversionFailure(at + 7, rusqlite::types::Type::Text, problem.into())
        })?,
    };
    Ok(Message::from(MessageFields {
        id: MessageId::from(row.get_ref(at)?.as_str()?),
        kind: row.get_ref(at + 1)?.as_str()?.into(),
        key: read_bytes(row, at + 2)?,
        content_type: ContentType::from(row.get_ref(at + 3)?.as_str()?),
        sent_at: row.get::<_, Option<i64>>(at + 4)?.map(Timestamp),
        attempts: Attempts { handled: row.get(at + 5)?, failed: row.get(at + 6)? },
        headers,
        body: read_bytes(row, at + 8)?.ok_or_else(|| missing_body(at + 8))?,
    }))
}

fn missing_body(at: usize) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(at, "body".to_owned(), rusqlite::types::Type::Null)
}

/// Reads bytes, or a value of another type written by hand.
pub(crate) fn read_bytes(row: &Row<'_>, at: usize) -> Sql<Option<Bytes>> {
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(Bytes::copy_from_slice(bytes)),
        ValueRef::Integer(number) => Some(number.to_string().into()),
        ValueRef::Real(number) => Some(number.to_string().into()),
    })
}

/// Value of the column `once` for a stored copy.
pub(crate) const COPY: u8 = 0;

fn once_code(on_conflict: OnConflict) -> u8 {
    match on_conflict {
        OnConflict::Fail => 1,
        OnConflict::Replace => 2,
    }
}

/// Cause of a change.
#[derive(Clone, Copy, Default)]
pub(crate) struct Because<'a> {
    /// Origin of the change.
    pub(crate) by: Option<&'a str>,
    /// Worker that ran the message, if any did.
    pub(crate) worker: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    pub(crate) result: Option<&'a [u8]>,
}

impl Tx<'_> {
    /// Returns the state shown for an unfinished message of this topic.
    pub(crate) fn shown(&self, topic: i64, state: State) -> State {
        if self.places().topics[&topic].is_dead { State::Dead } else { state }
    }

    /// Returns the column `schedule`: the name of an entry, unless it is a plain publish.
    fn stored_name<'a>(&self, new: &New<'a>) -> Option<&'a str> {
        let id = &*new.content.message.id.0;
        let name = new.schedule.filter(|_| new.phase == Phase::Waits);
        name.filter(|name| self.published(new.topic, name) != Some(id))
    }

    pub(crate) fn insert(&mut self, new: &New<'_>) -> Sql<i64> {
        let number = self.next();
        let (content, message) = (new.content, new.content.message);
        let rank = (new.phase == Phase::Ready).then_some(number);
        let schedule = self.stored_name(new);
        let once = new.chosen.map(|chosen| once_code(chosen.on_conflict));
        let waits = new.phase == Phase::Waits;
        let destination = content.destination.as_deref().filter(|_| waits);
        let part = waits.then(|| self.wait(new.topic, new.due, number)).transpose()?;
        self.sql(
            "INSERT INTO message VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?1, ?7, ?8, ?9, ?10, ?11, ?11, NULL, NULL, 0, NULL,
             NULL, NULL, NULL, NULL, ?12, ?13, NULL, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, NULL, NULL)",
        )?
        .execute(params![
            number,
            new.topic,
            new.place,
            new.home,
            new.phase as u8,
            code(new.state),
            rank,
            schedule,
            destination,
            new.due.0,
            self.now.0,
            once.or(new.is_copy.then_some(COPY)),
            new.chosen.map(|chosen| chosen.content.to_be_bytes()),
            new.problem,
            &*message.id.0,
            &*message.kind,
            message.key.as_deref(),
            &*message.content_type,
            message.sent_at.map(|at| at.0),
            message.attempts.handled,
            message.attempts.failed,
            content.headers,
            content.inline(),
            part,
        ])?;
        self.write_payload(number, content)?;
        let bytes = if new.state == State::Dead { message.body.len() as i64 } else { 0 };
        self.tally(new.home, new.state, 1, bytes);
        Ok(number)
    }

    fn write_payload(&self, number: i64, content: &Content<'_>) -> Sql<()> {
        if content.is_large() {
            self.sql("INSERT OR REPLACE INTO payload VALUES (?1, ?2)")?
                .execute((number, &*content.message.body))?;
        }
        Ok(())
    }

    /// Copies the current row of a message, with its history, for another subscription.
    pub(crate) fn copy_row(&mut self, of: i64, topic: i64, place: i64, home: i64, shown: State) -> Sql<()> {
        let (number, step) = (self.next(), self.next());
        self.sql(
            "INSERT INTO message SELECT ?1, ?2, ?3, ?4, 1, ?5, born, ?6, ?6, NULL, NULL, due, created_at, updated_at, NULL,
                NULL, 0, changed_by, worker, error, CASE error_step WHEN step THEN ?6 ELSE error_step END, NULL, once,
                content, fired, problem, id, type, key, content_type, sent_at, handled, failed, headers, body, NULL, NULL,
                NULL
             FROM message WHERE number = ?7",
        )?
        .execute((number, topic, place, home, code(shown), step, of))?;
        self.sql("INSERT INTO payload SELECT ?1, body FROM payload WHERE message = ?2")?
            .execute((number, of))?;
        self.sql(
            "INSERT INTO history SELECT ?1, step, at, state, by, error, handled, failed FROM history WHERE message = ?2",
        )?
        .execute((number, of))?;
        let bytes = if shown == State::Dead { self.body_length(of)? } else { 0 };
        self.tally(home, shown, 1, bytes);
        Ok(())
    }

    pub(crate) fn held(&self, number: i64) -> Sql<Option<Held>> {
        self.sql(concat!("SELECT ", held!(), " FROM message WHERE number = ?1"))?
            .query_row([number], Held::read)
            .optional()
    }

    pub(crate) fn body_length(&self, number: i64) -> Sql<i64> {
        let length = self
            .sql(
                "SELECT length(coalesce(body, (SELECT body FROM payload WHERE message = ?1))) FROM message
                 WHERE number = ?1",
            )?
            .query_row([number], |row| row.get::<_, Option<i64>>(0))
            .optional()?;
        Ok(length.flatten().unwrap_or(0))
    }

    /// Records the history of a message that is about to leave its state.
    pub(crate) fn leave(&mut self, held: &Held) -> Sql<()> {
        self.write_past(held.number, held.step)?;
        self.uncount(held)
    }

    /// Records the current state of a message in the history before it changes. Its initial state
    /// is in its own row.
    pub(crate) fn write_past(&self, number: i64, step: i64) -> Sql<()> {
        if step != number && !self.is_frugal {
            self.sql(
                "INSERT INTO history SELECT number, step, updated_at, state, changed_by,
                    CASE error_step WHEN step THEN error END, handled, failed FROM message WHERE number = ?1",
            )?
            .execute([number])?;
            self.shorten_past(number, step)?;
        }
        Ok(())
    }

    fn uncount(&mut self, held: &Held) -> Sql<()> {
        let bytes = if held.state == State::Dead { self.body_length(held.number)? } else { 0 };
        self.tally(held.home, held.state, -1, -bytes);
        Ok(())
    }

    /// Removes a message without a record.
    pub(crate) fn remove(&mut self, held: &Held) -> Sql<()> {
        self.remove_all(std::slice::from_ref(held))
    }

    /// Removes messages without a record, except for their ids. Ids are written after the rows are
    /// removed, since there may be no room before.
    pub(crate) fn remove_all(&mut self, all: &[Held]) -> Sql<()> {
        let mut fired = Vec::new();
        for held in all {
            fired.extend(self.fired(held)?);
            self.uncount(held)?;
            self.forget_wait(held)?;
            self.sql("DELETE FROM message WHERE number = ?1")?.execute([held.number])?;
            if held.step != held.number {
                self.sql("DELETE FROM history WHERE message = ?1")?.execute([held.number])?;
            }
            if held.is_large {
                self.sql("DELETE FROM payload WHERE message = ?1")?.execute([held.number])?;
            }
        }
        fired.iter().try_for_each(|fired| self.remember_fired(fired))
    }

    /// Makes a message ready in this place, behind all others.
    pub(crate) fn make_ready(
        &mut self,
        held: &Held,
        topic: i64,
        place: i64,
        home: i64,
        by: Option<&str>,
    ) -> Sql<()> {
        let (step, shown) = (self.next(), self.shown(topic, State::Ready));
        self.leave(held)?;
        self.sql(
            "UPDATE message SET topic = ?2, place = ?3, home = ?4, phase = 1, state = ?5, step = ?6, rank = ?6,
                schedule = NULL, destination = NULL, updated_at = ?7, changed_by = ?8, fired = ?9
             WHERE number = ?1",
        )?
        .execute((
            held.number,
            topic,
            place,
            home,
            code(shown),
            step,
            self.now.0,
            by,
            held.fired_code(),
        ))?;
        self.enter(held.number, home, shown)
    }

    pub(crate) fn enter(&mut self, number: i64, home: i64, shown: State) -> Sql<()> {
        let bytes = if shown == State::Dead { self.body_length(number)? } else { 0 };
        self.tally(home, shown, 1, bytes);
        Ok(())
    }

    /// Finishes a message, and keeps its record if the settings say so. With little room, a message
    /// with a result is kept or not finished at all, since a caller waits for the result.
    pub(crate) fn end(&mut self, held: &Held, ended: State, because: Because<'_>) -> Sql<()> {
        // If it has fired, its row itself keeps the time of its end.
        if held.is_chosen && !held.has_fired {
            self.remember_end(held)?;
        }
        if self.record_retention(held.topic).is_zero() || self.is_frugal && because.result.is_none() {
            return self.remove(held);
        }
        self.leave(held)?;
        let step = self.next();
        self.sql(
            "UPDATE message SET phase = 4, state = ?2, step = ?3, rank = NULL, schedule = NULL, destination = NULL,
                updated_at = ?4, lease_until = NULL, holder = NULL, changed_by = ?5, worker = coalesce(?6, worker),
                error = coalesce(?7, error), error_step = CASE WHEN ?7 IS NULL THEN error_step ELSE ?3 END, result = ?8,
                fired = ?9
             WHERE number = ?1",
        )?
        .execute((
            held.number,
            code(ended),
            step,
            self.now.0,
            because.by,
            because.worker,
            because.error,
            because.result,
            held.fired_code(),
        ))?;
        self.tally(held.home, ended, 1, 0);
        Ok(())
    }

    /// Rewrites a message with its current content in its own row, and puts it in its new place.
    pub(crate) fn rewrite(&mut self, held: &Held, new: &New<'_>, because: Because<'_>) -> Sql<()> {
        let (content, message) = (new.content, new.content.message);
        let fired = self.fired(held)?;
        self.leave(held)?;
        let is_same = content.is_large()
            && self
                .sql("SELECT body = ?2 FROM payload WHERE message = ?1")?
                .query_row((held.number, &*message.body), |row| row.get(0))
                .optional()?
                .unwrap_or(false);
        if !is_same {
            if held.is_large {
                self.sql("DELETE FROM payload WHERE message = ?1")?.execute([held.number])?;
            }
            self.write_payload(held.number, content)?;
        }
        self.forget_wait(held)?;
        let step = self.next();
        let waits = new.phase == Phase::Waits;
        let part = waits.then(|| self.wait(new.topic, new.due, held.number)).transpose()?;
        self.sql(
            "UPDATE message SET topic = ?2, place = ?3, home = ?4, phase = ?5, state = ?6, step = ?7, rank = ?8,
                schedule = ?9, destination = ?10, due = ?11, updated_at = ?12, lease_until = NULL, holder = NULL,
                deliveries = 0, changed_by = ?13, worker = coalesce(?14, worker), error = ?15, error_step = ?16,
                result = NULL, once = NULL, fired = NULL, problem = NULL, id = ?17, type = ?18, key = ?19, content_type = ?20,
                sent_at = ?21, handled = ?22, failed = ?23, headers = ?24, body = ?25, part = ?26,
                was_part = NULL, was_due = NULL
             WHERE number = ?1",
        )?
        .execute(params![
            held.number,
            new.topic,
            new.place,
            new.home,
            new.phase as u8,
            code(new.state),
            step,
            (!waits).then_some(step),
            self.stored_name(new),
            content.destination.as_deref().filter(|_| waits),
            new.due.0,
            self.now.0,
            because.by,
            because.worker,
            because.error,
            because.error.map(|_| step),
            &*message.id.0,
            &*message.kind,
            message.key.as_deref(),
            &*message.content_type,
            message.sent_at.map(|at| at.0),
            message.attempts.handled,
            message.attempts.failed,
            content.headers,
            content.inline(),
            part,
        ])?;
        let bytes = if new.state == State::Dead { message.body.len() as i64 } else { 0 };
        self.tally(new.home, new.state, 1, bytes);
        fired.map_or(Ok(()), |fired| self.remember_fired(&fired))
    }
}
