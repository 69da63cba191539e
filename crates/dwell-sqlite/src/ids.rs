//! The ids that are remembered: those that a sender chose, and those under which something waited and fired.

use crate::{
    fault::Sql,
    row::{Held, Phase, held},
    tx::Tx,
};
use dwell_core::{Text, Timestamp};
use rusqlite::{OptionalExtension, Row};
use std::time::Duration;

/// What is known about an id of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The hash of the content, if the sender chose the id.
    pub(crate) content: Option<u128>,
    /// When it was due, if it waited.
    pub(crate) due: Option<Timestamp>,
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
    /// What is known about this id. What is not over is known however long ago it was sent.
    pub(crate) fn known(&self, topic: i64, id: &str) -> Sql<Option<Known>> {
        let found = match (self.known_by_row(topic, id)?, self.known_by_name(topic, id)?) {
            // A row that stands for it is the newer one: older ones were written down when it was sent.
            (Some((row, row_until)), Some((name, until))) => {
                let known = Known { content: row.content.or(name.content), ..row };
                Some((known, until.max(row_until)))
            }
            (row, name) => row.or(name),
        };
        match found {
            Some((known, until)) if until > self.now || self.lives(topic, id, known.content)? => {
                Ok(Some(known))
            }
            _ => Ok(None),
        }
    }

    /// What the rows say that have fired under this id, and until when.
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

    fn known_by_name(&self, topic: i64, id: &str) -> Sql<Option<(Known, Timestamp)>> {
        self.sql("SELECT content, due, until FROM known WHERE id = ?1 AND topic = ?2")?
            .query_row((id, topic), read)
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

    /// Remembers an id. What the content was is not forgotten by one who does not know.
    pub(crate) fn remember(&self, topic: i64, id: &str, known: Known) -> Sql<()> {
        let until = self.now.after(self.settings.ids);
        self.sql(
            "INSERT INTO known VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (id, topic) DO UPDATE
             SET content = coalesce(excluded.content, content), due = excluded.due, until = excluded.until",
        )?
        .execute((
            id,
            topic,
            known.content.map(u128::to_be_bytes),
            known.due.map(|due| due.0),
            until.0,
        ))?;
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
            "INSERT INTO known VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (id, topic) DO UPDATE
             SET content = coalesce(excluded.content, content), due = excluded.due, until = max(until, excluded.until)",
        )?
        .execute((&*fired.id, fired.topic, fired.content, fired.due.0, fired.until.0))?;
        Ok(())
    }

    /// An id is sent again, and waits: what rows say that have fired under it is written down, and known for as long as it
    /// would have been. When the new one fires, it alone speaks for the id, whichever of them is over first.
    pub(crate) fn write_down_fired(&self, topic: i64, id: &str) -> Sql<()> {
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
        self.forget_rows(topic, id)
    }

    /// An id is sent again: rows that have fired under it say no more about it.
    pub(crate) fn forget_rows(&self, topic: i64, id: &str) -> Sql<()> {
        self.sql(
            "UPDATE message INDEXED BY message_id SET fired = NULL WHERE id = ?1 AND topic = ?2 AND fired = 1",
        )?
        .execute((id, topic))?;
        Ok(())
    }

    /// This message is over: from now on its id is remembered for so long, where it lies and where it was sent to.
    pub(crate) fn remember_end(&self, held: &Held) -> Sql<()> {
        let until = self.now.after(self.settings.ids);
        self.sql(
            "UPDATE known SET until = ?4 WHERE id = ?1
             AND (topic = ?2 OR content = (SELECT content FROM message WHERE number = ?3))",
        )?
        .execute((&*held.id, held.topic, held.number, until.0))?;
        Ok(())
    }

    /// A message of this id lives: it is remembered for so long from now on.
    pub(crate) fn remember_for(&self, topic: i64, id: &str, time: Duration) -> Sql<()> {
        let until = self.now.after(time);
        self.sql("UPDATE known SET until = ?3 WHERE id = ?1 AND topic = ?2")?
            .execute((id, topic, until.0))?;
        Ok(())
    }
}

/// A hash as the file has it.
pub(crate) fn hash(bytes: Option<[u8; 16]>) -> Option<u128> {
    bytes.map(u128::from_be_bytes)
}

fn read(row: &Row<'_>) -> Sql<(Known, Timestamp)> {
    let content: Option<[u8; 16]> = row.get(0)?;
    let due: Option<i64> = row.get(1)?;
    let known = Known { content: hash(content), due: due.map(Timestamp) };
    Ok((known, Timestamp(row.get(2)?)))
}
