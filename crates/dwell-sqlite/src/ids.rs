//! The ids that are remembered: those that a sender chose, and those under which something waited and fired.

use crate::{
    fault::Sql,
    row::{Held, Phase, held},
    tx::Tx,
};
use dwell_core::{ScheduleId, Text, Timestamp, is_own_topic};
use rusqlite::{OptionalExtension, Row};
use std::time::Duration;

/// What is known about an id of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The hash of the content, if the sender chose the id.
    pub(crate) content: Option<u128>,
    /// When it was due, if it waited.
    pub(crate) due: Option<Timestamp>,
    /// Whether it is being sent to another broker, and nobody knows yet whether that succeeded.
    pub(crate) is_sending: bool,
}

impl Known {
    pub(crate) fn new(content: Option<u128>, due: Option<Timestamp>) -> Self {
        Self { content, due, is_sending: false }
    }
}

/// What a row said about the id that it had fired under.
pub(crate) struct Fired {
    id: Text,
    topic: i64,
    content: Option<[u8; 16]>,
    due: Timestamp,
    until: Timestamp,
}

impl Tx<'_> {
    /// What is known about this name. A message that is not over is known however long ago it was sent.
    pub(crate) fn known(&self, topic: i64, name: &str) -> Sql<Option<Known>> {
        let row = match self.published(topic, name) {
            Some(id) => self.known_by_row(topic, id)?,
            None => None,
        };
        let found = match (row, self.known_by_name(topic, self.known_name(topic, name))?) {
            // A row that stands for it is the newer one: older ones were written down when it was sent.
            (Some((row, row_until)), Some((name, until))) => {
                let known = Known { content: row.content.or(name.content), ..row };
                Some((known, until.max(row_until)))
            }
            (row, name) => row.or(name),
        };
        match found {
            Some((known, until))
                if until > self.now || self.lives(topic, message_of(name), known.content)? =>
            {
                Ok(Some(known))
            }
            _ => Ok(None),
        }
    }

    /// A name as the table `known` has it: of a plain publish, its message id. The topic stands beside it.
    fn known_name<'a>(&self, topic: i64, name: &'a str) -> &'a str {
        self.published(topic, name).unwrap_or(name)
    }

    /// The message of a name in the table `known`. The id of a plain publish may look like a name, because another program chose
    /// it; a name in this topic has the topic in it, and is not that of a plain publish.
    pub(crate) fn message_of_known<'a>(&self, topic: i64, name: &'a str) -> &'a str {
        let of = &self.places().topics[&topic].name;
        match ScheduleId::split(name) {
            Some((message, to))
                if self.published(topic, name).is_none() && (to.topic_name() == of || is_own_topic(of)) =>
            {
                message
            }
            _ => name,
        }
    }

    /// What the rows of publishes of this message say that have fired, and until when.
    fn known_by_row(&self, topic: i64, id: &str) -> Sql<Option<(Known, Timestamp)>> {
        let mut statement = self.sql(
            "SELECT CASE WHEN once IS NOT NULL THEN content END, due, updated_at FROM message INDEXED BY message_id
             WHERE id = ?1 AND topic = ?2 AND fired = 1 ORDER BY number DESC",
        )?;
        let rows = statement.query_map((id, topic), read)?.collect::<Sql<Vec<_>>>()?;
        let last = rows.iter().map(|(_, updated_at)| *updated_at).max();
        let newest = rows.first().map(|(known, _)| *known);
        Ok(newest.zip(last.map(|last| last.after(self.settings.ids))))
    }

    fn known_by_name(&self, topic: i64, name: &str) -> Sql<Option<(Known, Timestamp)>> {
        self.sql("SELECT content, due, until, sending FROM known WHERE name = ?1 AND topic = ?2")?
            .query_row((name, topic), |row| {
                let (known, until) = read(row)?;
                Ok((Known { is_sending: row.get(3)?, ..known }, until))
            })
            .optional()
    }

    /// Whether a message of this id is not over: one that lies in this topic, came from there and was given up, or has this
    /// content, of which the topic that it was sent to is a part.
    pub(crate) fn lives(&self, topic: i64, id: &str, content: Option<u128>) -> Sql<bool> {
        self.sql(
            "SELECT 1 FROM message INDEXED BY message_id
             WHERE id = ?1 AND phase < 4 AND (topic = ?2 OR content = ?3 OR home IN (
                 SELECT home.id FROM place JOIN place AS home ON home.topic = place.topic WHERE place.id = ?2
             )) LIMIT 1",
        )?
        .exists((id, topic, content.map(u128::to_be_bytes)))
    }

    /// Remembers a name. The content is kept if the new one is not known.
    pub(crate) fn remember(&self, topic: i64, name: &str, known: Known) -> Sql<()> {
        let until = self.now.after(self.settings.ids);
        self.sql(
            "INSERT INTO known VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name, topic) DO UPDATE
             SET content = coalesce(excluded.content, content), due = excluded.due, until = excluded.until,
                 sending = CASE excluded.sending WHEN 0 THEN 0 ELSE min(sending + 1, 2) END",
        )?
        .execute((
            self.known_name(topic, name),
            topic,
            known.content.map(u128::to_be_bytes),
            known.due.map(|due| due.0),
            until.0,
            known.is_sending,
        ))?;
        Ok(())
    }

    /// Forgets a name before its time, if it is recorded as being sent with this content, and no earlier send of it is in
    /// doubt.
    pub(crate) fn forget_sending(&self, topic: i64, name: &str, content: u128) -> Sql<()> {
        self.sql("DELETE FROM known WHERE name = ?1 AND topic = ?2 AND sending = 1 AND content = ?3")?
            .execute((self.known_name(topic, name), topic, content.to_be_bytes()))?;
        Ok(())
    }

    /// What the row of a message says about its id, if that has fired and is not over for long enough.
    pub(crate) fn fired(&self, held: &Held) -> Sql<Option<Fired>> {
        let since = if held.phase == Phase::Over { held.updated_at } else { self.now };
        let until = since.after(self.settings.ids);
        if !held.has_fired || until <= self.now {
            return Ok(None);
        }
        let content = match held.is_chosen {
            true => self
                .sql("SELECT CASE WHEN once IS NOT NULL THEN content END FROM message WHERE number = ?1")?
                .query_row([held.number], |row| row.get(0))?,
            false => None,
        };
        Ok(Some(Fired { id: held.id.clone(), topic: held.topic, content, due: held.due, until }))
    }

    /// That row is gone, or became another: what it said is written down.
    pub(crate) fn remember_fired(&self, fired: &Fired) -> Sql<()> {
        self.sql(
            "INSERT INTO known VALUES (?1, ?2, ?3, ?4, ?5, 0) ON CONFLICT (name, topic) DO UPDATE
             SET content = coalesce(excluded.content, content), due = excluded.due, until = max(until, excluded.until),
                 sending = 0",
        )?
        .execute((&*fired.id, fired.topic, fired.content, fired.due.0, fired.until.0))?;
        Ok(())
    }

    /// An id is sent again, and waits: what rows say that have fired under it is written down, and known for as long as it
    /// would have been. When the new one fires, it alone speaks for the id, whichever of them is over first.
    pub(crate) fn write_down_fired(&self, topic: i64, name: &str) -> Sql<()> {
        let Some(id) = self.published(topic, name) else { return Ok(()) };
        let rows: Vec<Held> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_id WHERE id = ?1 AND topic = ?2 AND fired = 1 ORDER BY number"
            ))?;
            statement.query_map((id, topic), Held::read)?.collect::<Sql<_>>()?
        };
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            if let Some(fired) = self.fired(row)? {
                self.remember_fired(&fired)?;
            }
        }
        self.forget_rows(topic, name)
    }

    /// An id is sent again: rows that have fired under it say no more about it.
    pub(crate) fn forget_rows(&self, topic: i64, name: &str) -> Sql<()> {
        let Some(id) = self.published(topic, name) else { return Ok(()) };
        self.sql(
            "UPDATE message INDEXED BY message_id SET fired = NULL WHERE id = ?1 AND topic = ?2 AND fired = 1",
        )?
        .execute((id, topic))?;
        Ok(())
    }

    /// This message is over: from now on its id is remembered for so long, where it lies and where it was sent to.
    pub(crate) fn remember_end(&self, held: &Held) -> Sql<()> {
        let until = self.now.after(self.settings.ids);
        // The names of a message sort between `{id}@` and `{id}A`: `A` follows `@`.
        for sql in [
            "UPDATE known SET until = ?4 WHERE name = ?1
             AND (topic = ?2 OR content = (SELECT content FROM message WHERE number = ?3))",
            "UPDATE known SET until = ?4 WHERE name >= ?1 || '@' AND name < ?1 || 'A'
             AND (topic = ?2 OR content = (SELECT content FROM message WHERE number = ?3))",
        ] {
            self.sql(sql)?.execute((&*held.id, held.topic, held.number, until.0))?;
        }
        Ok(())
    }

    /// The message of this name still exists: remembers the name for another period.
    pub(crate) fn remember_for(&self, topic: i64, name: &str, time: Duration) -> Sql<()> {
        let until = self.now.after(time);
        self.sql("UPDATE known SET until = ?3 WHERE name = ?1 AND topic = ?2")?
            .execute((name, topic, until.0))?;
        Ok(())
    }
}

fn message_of(name: &str) -> &str {
    ScheduleId::split(name).map_or(name, |(message, _)| message)
}

/// A hash as the file has it.
pub(crate) fn hash(bytes: Option<[u8; 16]>) -> Option<u128> {
    bytes.map(u128::from_be_bytes)
}

fn read(row: &Row<'_>) -> Sql<(Known, Timestamp)> {
    let content: Option<[u8; 16]> = row.get(0)?;
    let due: Option<i64> = row.get(1)?;
    let known = Known::new(hash(content), due.map(Timestamp));
    Ok((known, Timestamp(row.get(2)?)))
}
