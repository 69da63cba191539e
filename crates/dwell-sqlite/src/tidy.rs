//! Maintenance that keeps the file small: expired records are removed and free space is returned,
//! in small steps.

use crate::{
    fault::Sql,
    ids::hash,
    row::{Held, held},
    tx::Tx,
};
use dwell_core::{JOB_TOPIC, Timestamp};
use rusqlite::{OptionalExtension, Params};
use std::time::Duration;

/// Number of rows of each kind removed at a time.
const CHUNK: i64 = 500;

/// Number of records scanned for some that can be removed early.
const SEARCH: i64 = 5000;

/// Minimum time before the id of an unfinished message is checked again, so that tidying
/// terminates. When the message has finished, its id gets the configured retention, and no more.
const LIVES: Duration = Duration::from_secs(60);

/// Number of first and last steps kept of a long history: a message may be released any number of
/// times.
const FIRST: usize = 10;
const LAST: usize = 1000;

/// Number of pages returned at a time.
const PAGES: i64 = 256;

/// Number of free pages that the file keeps for later use.
const SPARE: i64 = 1024;

impl Tx<'_> {
    /// Removes some expired records. Returns whether there are more.
    pub(crate) fn tidy(&mut self) -> Sql<bool> {
        self.forget_consumers()?;
        let is_more =
            [self.forget_records()?, self.forget_ids()?, self.forget_claims()?, self.give_back_space()?];
        Ok(is_more.contains(&true))
    }

    /// Returns the retention of the record of a message in this topic. A repeated id must not be a
    /// duplicate of a job that no longer exists, so the record of a job is kept for at least as
    /// long as its id.
    pub(crate) fn record_retention(&self, topic: i64) -> Duration {
        let settings = &self.settings;
        if self.places().topics[&topic].is_job { settings.done.max(settings.ids) } else { settings.done }
    }

    /// Removes records of finished messages.
    fn forget_records(&mut self) -> Sql<bool> {
        let since = |kept: Duration| self.now.0.saturating_sub(millis(kept));
        let (done, all) = (since(self.settings.done), since(self.settings.done.max(self.settings.ids)));
        let over = concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_over WHERE phase = 4 AND updated_at <= ?2 ORDER BY updated_at LIMIT ?1"
        );
        let mut is_more = self.remove_found(over, (CHUNK, all))? == CHUNK as usize;
        // Records of jobs are skipped once, not each time.
        let from = self.own.marks.expired;
        if done > all.max(from) {
            let others = concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_over WHERE phase = 4 AND updated_at > ?2 AND updated_at <= ?3
                 AND topic IN (SELECT id FROM place WHERE substr(topic, 1, length(?4)) <> ?4) ORDER BY updated_at LIMIT ?1"
            );
            let others = self.remove_found(others, (CHUNK, from, done, JOB_TOPIC))?;
            if others < CHUNK as usize {
                self.own.marks.expired = done;
            } else {
                is_more = true;
            }
        }
        Ok(is_more)
    }

    /// Removes some records early, so that unfinished messages can be processed. Only records
    /// without a result are removed, since no caller waits for those. Scans a bounded number of
    /// records at a time, and continues behind them the next time.
    pub(crate) fn make_room(&mut self) -> Sql<()> {
        let from = self.own.marks.searched;
        let end: Option<(i64, i64)> = self
            .sql(
                "SELECT updated_at, number FROM message INDEXED BY message_over
                 WHERE phase = 4 AND (updated_at, number) >= (?1, ?2) ORDER BY updated_at, number LIMIT 1 OFFSET ?3",
            )?
            .query_row((from.0, from.1, SEARCH), |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let (end, end_number) = end.unwrap_or((i64::MAX, i64::MAX));
        let over = concat!(
            "SELECT ",
            held!(),
            " FROM message INDEXED BY message_over
             WHERE phase = 4 AND (updated_at, number) >= (?2, ?3) AND (updated_at, number) < (?4, ?5) AND result IS NULL
             ORDER BY updated_at, number LIMIT ?1"
        );
        let removed = self.remove_found(over, (CHUNK, from.0, from.1, end, end_number))?;
        if removed < CHUNK as usize {
            // All of this window are removed; continue behind it, or start over at the end.
            self.own.marks.searched = if end == i64::MAX { (i64::MIN, i64::MIN) } else { (end, end_number) };
        }
        Ok(())
    }

    /// Removes the messages that this query finds. Returns their number.
    fn remove_found(&mut self, sql: &'static str, of: impl Params) -> Sql<usize> {
        let found = self.sql(sql)?.query_map(of, Held::read)?.collect::<Sql<Vec<_>>>()?;
        self.remove_all(&found)?;
        Ok(found.len())
    }

    /// Removes ids whose retention after the end of their message is over.
    fn forget_ids(&mut self) -> Sql<bool> {
        let old: Vec<(String, i64, Option<u128>)> = {
            let mut statement = self.sql(
                "SELECT name, topic, content FROM known INDEXED BY known_until WHERE until <= ?1 ORDER BY until LIMIT ?2",
            )?;
            let old = statement
                .query_map((self.now.0, CHUNK), |row| Ok((row.get(0)?, row.get(1)?, hash(row.get(2)?))))?;
            old.collect::<Sql<_>>()?
        };
        for (name, topic, content) in &old {
            if self.lives(*topic, self.message_of_known(*topic, name), *content)? {
                self.remember_for(*topic, name, self.settings.ids.max(LIVES))?;
            } else {
                self.sql("DELETE FROM known WHERE name = ?1 AND topic = ?2")?.execute((name, topic))?;
            }
        }
        Ok(old.len() as i64 == CHUNK)
    }

    /// Removes the middle of a long history. Done occasionally, depending on a hash of the step
    /// number, so that it reaches each of several messages whose steps alternate.
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

    /// Removes consumers that were dropped without `close` and have no leases left.
    fn forget_consumers(&mut self) -> Sql<()> {
        let gone = self.own.consumers.iter().filter(|(_, ours)| ours.is_gone());
        let gone: Vec<_> = gone.map(|(number, ours)| (*number, ours.place)).collect();
        for (number, place) in gone {
            let has_something = self
                .sql(
                    "SELECT 1 FROM message INDEXED BY message_leased
                     WHERE place = ?1 AND phase = 3 AND holder = ?2 LIMIT 1",
                )?
                .exists((place, number))?;
            if !has_something {
                self.own.consumers.remove(&number);
            }
        }
        Ok(())
    }

    /// Shrinks the file if much of it is free.
    fn give_back_space(&mut self) -> Sql<bool> {
        let (free, all) = (self.pragma("freelist_count")?, self.pragma("page_count")?);
        let spare = SPARE.max(all / 4);
        if free <= spare {
            return Ok(false);
        }
        let mut statement = self.connection().prepare(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut pages = statement.query([])?;
        while pages.next()?.is_some() {}
        // A file created by another program may be unable to shrink.
        let left = self.pragma("freelist_count")?;
        Ok(left < free && left > spare)
    }
}

fn millis(duration: Duration) -> i64 {
    Timestamp(0).after(duration).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sqlite, SqliteSettings, file::File};
    use dwell_core::{Address, Envelope, Message, OnMissing, Seams, Subscription, Transport, VirtualClock};

    #[tokio::test]
    async fn dropped_consumer_stays_registered_until_its_leases_end() {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let sqlite = Sqlite::open(SqliteSettings::memory(), seams).unwrap();
        let mail = Subscription::new("orders", "mail");
        sqlite.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let order = Envelope::new(Address::topic("orders"), Message::new("a", "orders.placed", "42"));
        sqlite.producer().await.unwrap().send(&[order]).await.remove(0).unwrap();
        let known = |tx: &mut Tx<'_>| -> Sql<usize> {
            tx.tidy()?;
            Ok(tx.own.consumers.len())
        };
        let file = sqlite.0.file();
        let [dropped, stays] =
            [sqlite.consumer(mail.clone()).await.unwrap(), sqlite.consumer(mail).await.unwrap()];
        assert_eq!(dropped.receive(1, Duration::ZERO, None).await.unwrap().len(), 1);
        drop(dropped);
        assert_eq!(file.write(1, known).await.unwrap(), 2, "its lease still follows the clock");
        clock.advance(Duration::from_secs(30)).await;
        assert_eq!(stays.receive(1, Duration::ZERO, None).await.unwrap().len(), 1);
        assert_eq!(file.write(1, known).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn make_room_skips_records_with_a_result() {
        let file = File::open(SqliteSettings::memory(), Seams::system("test")).unwrap();
        let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + 10)
             INSERT INTO message SELECT i, 9, 9, 9, 4, 8, 8, i, NULL, NULL, NULL, 0, 0, i, NULL, NULL, 0, NULL, NULL, NULL,
                 NULL, CASE WHEN i <= ?1 THEN x'00' END, NULL, NULL, NULL, NULL, i, '', NULL, '', NULL, 0, 0, NULL, x'', NULL,
                 NULL, NULL FROM n";
        file.write(1, move |tx| tx.sql(insert)?.execute([2 * SEARCH])).await.unwrap();
        let left = |tx: &mut Tx<'_>| -> Sql<i64> {
            tx.make_room()?;
            tx.sql("SELECT count(*) FROM message")?.query_row([], |row| row.get(0))
        };
        let fail = |tx: &mut Tx<'_>| -> Sql<()> { tx.make_room().and(Err(rusqlite::Error::InvalidQuery)) };
        file.write(1, fail).await.unwrap_err();
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts.push(file.write(1, left).await.unwrap() - 2 * SEARCH);
        }
        assert_eq!(
            counts,
            [10, 10, 0, 0],
            "each call scans a bounded number, and a call that was rolled back does not count"
        );
    }
}
