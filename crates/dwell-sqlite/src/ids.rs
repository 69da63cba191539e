//! The ids that are remembered: those that a sender chose, and those under which something waited and fired.

use crate::{fault::Sql, tx::Tx};
use dwell_core::Timestamp;
use rusqlite::OptionalExtension;

/// What is known about an id of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The hash of the content, if the sender chose the id.
    pub(crate) content: Option<u128>,
    /// When it was due, if it waited.
    pub(crate) due: Option<Timestamp>,
}

impl Tx<'_> {
    /// What is known about this id. What is not over is known however long ago it was sent.
    pub(crate) fn known(&self, topic: i64, id: &str) -> Sql<Option<Known>> {
        let found = self
            .sql("SELECT content, due, until FROM known WHERE id = ?1 AND topic = ?2")?
            .query_row((id, topic), |row| {
                let content: Option<[u8; 16]> = row.get(0)?;
                let due: Option<i64> = row.get(1)?;
                let known = Known { content: content.map(u128::from_be_bytes), due: due.map(Timestamp) };
                Ok((known, row.get::<_, i64>(2)?))
            })
            .optional()?;
        match found {
            Some((known, until)) if until > self.now.0 || self.lives(id)? => Ok(Some(known)),
            _ => Ok(None),
        }
    }

    /// Whether a message of this id is not over.
    pub(crate) fn lives(&self, id: &str) -> Sql<bool> {
        self.sql("SELECT 1 FROM message INDEXED BY message_id WHERE id = ?1 AND phase < 4 LIMIT 1")?
            .exists([id])
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

    /// A message of this id is over: from now on it is remembered for as long as the settings say.
    pub(crate) fn remember_longer(&self, id: &str) -> Sql<()> {
        let until = self.now.after(self.settings.ids);
        self.sql("UPDATE known SET until = max(until, ?2) WHERE id = ?1")?.execute((id, until.0))?;
        Ok(())
    }
}
