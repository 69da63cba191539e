//! Keeping the file small: what is over is forgotten when its time has come, and space is given back, a little at a time.

use crate::{
    fault::Sql,
    row::{Held, held},
    tx::Tx,
};
use dwell_core::Timestamp;
use std::time::Duration;

/// How many rows of each kind are removed at a time.
const CHUNK: i64 = 500;

/// How many pages are given back at a time.
const PAGES: i64 = 256;

/// So many free pages are kept for what comes next: to give them back and take them again would be work for nothing.
const SPARE: i64 = 1024;

impl Tx<'_> {
    /// Forgets some of what need not be kept. Returns whether there is more.
    pub(crate) fn tidy(&mut self) -> Sql<bool> {
        let is_more =
            [self.forget_records()?, self.forget_ids()?, self.forget_claims()?, self.give_back_space()?];
        Ok(is_more.contains(&true))
    }

    /// Records of messages that are over.
    fn forget_records(&mut self) -> Sql<bool> {
        let before = self.now.0.saturating_sub(millis(self.settings.done));
        let over: Vec<Held> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_over
                 WHERE phase = 4 AND updated_at <= ?1 ORDER BY updated_at LIMIT ?2"
            ))?;
            let over = statement.query_map((before, CHUNK), Held::read)?;
            over.collect::<Sql<_>>()?
        };
        for held in &over {
            self.remove(held)?;
        }
        Ok(over.len() as i64 == CHUNK)
    }

    /// Ids whose message is over for long enough.
    fn forget_ids(&mut self) -> Sql<bool> {
        let old: Vec<(String, i64)> = {
            let mut statement = self.sql(
                "SELECT id, topic FROM known INDEXED BY known_until WHERE until <= ?1 ORDER BY until LIMIT ?2",
            )?;
            let old = statement.query_map((self.now.0, CHUNK), |row| Ok((row.get(0)?, row.get(1)?)))?;
            old.collect::<Sql<_>>()?
        };
        for (id, topic) in &old {
            if self.lives(id)? {
                self.remember_longer(id)?;
            } else {
                self.sql("DELETE FROM known WHERE id = ?1 AND topic = ?2")?.execute((id, topic))?;
            }
        }
        // Those that live may be many, and are not looked at again at once.
        Ok(old.len() as i64 == CHUNK)
    }

    fn forget_claims(&mut self) -> Sql<bool> {
        let forgotten = self
            .sql(
                "DELETE FROM inbox WHERE (subscription, id) IN (
                     SELECT subscription, id FROM inbox INDEXED BY inbox_until WHERE until <= ?1 ORDER BY until LIMIT ?2
                 )",
            )?
            .execute((self.now.0, CHUNK))?;
        Ok(forgotten as i64 == CHUNK)
    }

    /// If much of the file is empty, it becomes smaller.
    fn give_back_space(&mut self) -> Sql<bool> {
        let (free, all) = (self.pragma("freelist_count")?, self.pragma("page_count")?);
        let spare = SPARE.max(all / 4);
        if free <= spare {
            return Ok(false);
        }
        let mut statement = self.connection().prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut pages = statement.query([])?;
        while pages.next()?.is_some() {}
        Ok(free - PAGES > spare)
    }
}

fn millis(duration: Duration) -> i64 {
    Timestamp(0).after(duration).0
}
