//! Remembered ids: ids chosen by senders, and names of pending entries that have fired.

use crate::{
    fault::Sql,
    row::{Held, Phase, held},
    tx::Tx,
};
use dwell_core::{ScheduleId, Text, Timestamp, is_own_topic};
use rusqlite::{OptionalExtension, Row};
use std::time::Duration;

/// Record of an id in a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Hash of the content, if the sender chose the id.
    pub(crate) content: Option<u128>,
    /// Its due time, if it was pending.
    pub(crate) due: Option<Timestamp>,
    /// Set while it is being sent to another broker, and the result is unknown.
    pub(crate) is_sending: bool,
}

impl Known {
    pub(crate) fn new(content: Option<u128>, due: Option<Timestamp>) -> Self {
        Self { content, due, is_sending: false }
    }
}

/// Id of a message that has fired, taken from its row.
pub(crate) struct Fired {
    id: Text,
    topic: i64,
    content: Option<[u8; 16]>,
    due: Timestamp,
    until: Timestamp,
}

impl Tx<'_> {
    /// Returns the record of this name. The name of an unfinished message is known however long ago
    /// it was sent.
    pub(crate) fn known(&self, topic: i64, name: &str) -> Sql<Option<Known>> {
        let row = match self.published(topic, name) {
            Some(id) => self.known_by_row(topic, id)?,
            None => None,
        };
        let found = match (row, self.known_by_name(topic, self.known_name(topic, name))?) {
            // The row is newer than the name: older rows are recorded by name when the id is sent
            // again.
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

    /// Returns the form of a name in the table `known`: for a plain publish, its message id, since
    /// the topic is a separate column.
    fn known_name<'a>(&self, topic: i64, name: &'a str) -> &'a str {
        self.published(topic, name).unwrap_or(name)
    }

    /// Returns the message of a name in the table `known`. The id of a plain publish may look like
    /// a name if another program chose it; a real name in this topic includes the topic, and is not
    /// that of a plain publish.
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

    /// Returns the record kept by the rows of fired publishes of this message, and its end.
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

    /// Returns whether a message of this id is unfinished: a message in this topic, a dead letter
    /// from it, or a message with this content, whose hash includes the original topic.
    pub(crate) fn lives(&self, topic: i64, id: &str, content: Option<u128>) -> Sql<bool> {
        self.sql(
            "SELECT 1 FROM message INDEXED BY message_id
             WHERE id = ?1 AND phase < 4 AND (topic = ?2 OR content = ?3 OR home IN (
                 SELECT home.id FROM place JOIN place AS home ON home.topic = place.topic WHERE place.id = ?2
             )) LIMIT 1",
        )?
        .exists((id, topic, content.map(u128::to_be_bytes)))
    }

    /// Remembers a name. The former content is kept if the new one is unknown.
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

    /// Forgets a name before its time, if it is recorded as being sent with this content, and no
    /// earlier send of it is in doubt.
    pub(crate) fn forget_sending(&self, topic: i64, name: &str, content: u128) -> Sql<()> {
        self.sql("DELETE FROM known WHERE name = ?1 AND topic = ?2 AND sending = 1 AND content = ?3")?
            .execute((self.known_name(topic, name), topic, content.to_be_bytes()))?;
        Ok(())
    }

    /// Returns the id kept by the row of a message, if the message has fired and the retention of
    /// the id has not ended.
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

    /// Records the id of a row that was removed or reused.
    pub(crate) fn remember_fired(&self, fired: &Fired) -> Sql<()> {
        self.sql(
            "INSERT INTO known VALUES (?1, ?2, ?3, ?4, ?5, 0) ON CONFLICT (name, topic) DO UPDATE
             SET content = coalesce(excluded.content, content), due = excluded.due, until = max(until, excluded.until),
                 sending = 0",
        )?
        .execute((&*fired.id, fired.topic, fired.content, fired.due.0, fired.until.0))?;
        Ok(())
    }

    /// Prepares for sending an id again as a pending message: ids kept by rows that have fired are
    /// recorded by name, for the rest of their retention. When the new message fires, its row alone
    /// keeps the id.
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

    /// Clears the mark of rows that have fired under this id, because the id is sent again.
    pub(crate) fn forget_rows(&self, topic: i64, name: &str) -> Sql<()> {
        let Some(id) = self.published(topic, name) else { return Ok(()) };
        self.sql(
            "UPDATE message INDEXED BY message_id SET fired = NULL WHERE id = ?1 AND topic = ?2 AND fired = 1",
        )?
        .execute((id, topic))?;
        Ok(())
    }

    /// Starts the retention of the ids of a finished message, in its current topic and in the one
    /// it was sent to.
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

    /// Extends the retention of the name of an unfinished message.
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

/// Converts a hash from its form in the file.
pub(crate) fn hash(bytes: Option<[u8; 16]>) -> Option<u128> {
    bytes.map(u128::from_be_bytes)
}

fn read(row: &Row<'_>) -> Sql<(Known, Timestamp)> {
    let content: Option<[u8; 16]> = row.get(0)?;
    let due: Option<i64> = row.get(1)?;
    let known = Known::new(hash(content), due.map(Timestamp));
    Ok((known, Timestamp(row.get(2)?)))
}
