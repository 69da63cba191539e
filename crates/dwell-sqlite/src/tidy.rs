//! Keeping the file small: what is over is forgotten when its time has come, and space is given back, a little at a time.

use crate::{
    fault::Sql,
    row::{Held, held},
    tx::Tx,
};
use dwell_core::Timestamp;
use rusqlite::Params;
use std::time::Duration;

/// How many rows of each kind are removed at a time.
const CHUNK: i64 = 500;

/// An id whose message lives is not looked at again before this: however many there are, tidying comes to an end. When its
/// message is over, it is remembered for as long as was asked for, and no longer.
const LIVES: Duration = Duration::from_secs(60);

/// So much is kept of the past of a message, of what was first and of what was last: it may be released for ever.
const FIRST: usize = 10;
const LAST: usize = 1000;

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
        let over = concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_over WHERE phase = 4 AND updated_at <= ?2 ORDER BY updated_at LIMIT ?1"
        );
        Ok(self.remove_found(over, (CHUNK, before))? == CHUNK as usize)
    }

    /// Forgets some records before their time, so that what is not over can be handled. Nobody waits for one without a result.
    pub(crate) fn make_room(&mut self) -> Sql<()> {
        let over = concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_over WHERE phase = 4 AND result IS NULL ORDER BY updated_at LIMIT ?1"
        );
        self.remove_found(over, [CHUNK]).map(drop)
    }

    /// Removes the messages that this finds. Returns how many there were.
    fn remove_found(&mut self, sql: &'static str, of: impl Params) -> Sql<usize> {
        let found = self.sql(sql)?.query_map(of, Held::read)?.collect::<Sql<Vec<_>>>()?;
        self.remove_all(&found)?;
        Ok(found.len())
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
                self.remember_for(id, self.settings.ids.max(LIVES))?;
            } else {
                self.sql("DELETE FROM known WHERE id = ?1 AND topic = ?2")?.execute((id, topic))?;
            }
        }
        Ok(old.len() as i64 == CHUNK)
    }

    /// Forgets the middle of a message's past, if it is long. Now and then: by the number of the step, mixed, so that it comes
    /// to each of those that take their steps in turns.
    pub(crate) fn shorten_past(&self, number: i64, step: i64) -> Sql<()> {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        const ONE_OF_128: u32 = u64::BITS - 7;
        if (step as u64).wrapping_mul(GOLDEN) >> ONE_OF_128 == 0 {
            self.sql(
                "DELETE FROM history WHERE message = ?1
                 AND step >= (SELECT step FROM history WHERE message = ?1 ORDER BY step LIMIT 1 OFFSET ?2)
                 AND step <= (SELECT step FROM history WHERE message = ?1 ORDER BY step DESC LIMIT 1 OFFSET ?3)",
            )?
            .execute((number, FIRST as i64, LAST as i64))?;
        }
        Ok(())
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
