//! Pending messages, ordered by due time. Each pending message has an entry here, in one of the
//! parts of its topic.
//!
//! ```text
//!   in_topic  in_part  due_at  message
//!       7        0      10:00      1
//!       7        0      10:15      2      stale, skipped
//!       7        0      10:20      3      cancelled, skipped
//!       7        1      10:05      2      rescheduled: its row knows both entries
//! ```
//!
//! A cancelled or discarded message leaves its entry behind, and a rescheduled one leaves its first
//! entry; such stale entries are skipped when their time comes. Removing an entry at once would
//! write a separate page among a million, whereas entries with the same due time lie side by side.
//! A message has at most two entries, and its row knows both, so that removing the row also removes
//! the entries. Parts exist for the same reason; see [`parts`](crate::parts).
//!
//! Each search for due messages skips a bounded number of stale entries, and removes those at the
//! front. No caller has to process all of them at once, however many messages were cancelled for
//! one instant.

use crate::{
    fault::Sql,
    flow::CHUNK,
    row::{Held, Phase},
    tx::Tx,
};
use dwell_core::{State, Timestamp};
use rusqlite::{OptionalExtension, Row};
use std::collections::VecDeque;

/// Maximum number of stale entries that are skipped each time before they are removed.
const PASSED: usize = 64;

/// Minimum number of entries read from a part at a time.
const FEW: usize = 16;

/// Condition that a message is pending under an entry of `waiting`. Other entries are stale.
macro_rules! waits_here {
    () => {
        "number = waiting.message AND phase = 0 AND topic = in_topic AND part = in_part AND due = due_at"
    };
}

/// Join that yields the pending messages.
macro_rules! waiting {
    () => {
        concat!("waiting CROSS JOIN message ON ", $crate::waiting::waits_here!())
    };
}

/// Pending message of an entry: of this number, in this topic and part, with this due time.
macro_rules! waits_under {
    () => {
        "message WHERE number = ?1 AND phase = 0 AND topic = ?2 AND part = ?3 AND due = ?4"
    };
}
pub(crate) use {waiting, waits_here, waits_under};

/// Result of a search for due messages.
pub(crate) struct Found<T> {
    /// Due messages, ordered by due time.
    pub(crate) due: Vec<T>,
    /// Set if not all entries were scanned.
    pub(crate) is_more: bool,
}

/// Due time and number of a message.
type Entry = (Timestamp, i64);

/// First entry of one part.
struct Next {
    due: Option<Timestamp>,
    /// Number of stale entries before it.
    passed: usize,
    /// Set if the part has no entries, not even stale ones.
    is_empty: bool,
}

/// Due entries of one part, in order, read in batches.
struct Due {
    part: i64,
    read: VecDeque<Entry>,
    /// Last entry that was read; `None` once the part is exhausted.
    after: Option<Entry>,
    /// Last of the stale entries at the front.
    front: Option<Entry>,
    /// Set once an entry was not stale.
    has_found: bool,
}

impl Due {
    fn of(part: i64) -> Self {
        let before_all = (Timestamp(i64::MIN), i64::MIN);
        Self { part, read: VecDeque::new(), after: Some(before_all), front: None, has_found: false }
    }

    /// Reads the next batch of entries if the current one is used up.
    fn fill(&mut self, tx: &Tx<'_>, topic: i64, count: usize) -> Sql<()> {
        let Some((due, number)) = self.after.filter(|_| self.read.is_empty()) else { return Ok(()) };
        let mut statement = tx.sql(
            "SELECT due_at, message FROM waiting WHERE in_topic = ?1 AND in_part = ?2 AND due_at <= ?3
             AND (due_at, message) > (?4, ?5) ORDER BY due_at, message LIMIT ?6",
        )?;
        let mut rows = statement.query((topic, self.part, tx.now.0, due.0, number, count as i64))?;
        while let Some(row) = rows.next()? {
            self.read.push_back((Timestamp(row.get(0)?), row.get(1)?));
        }
        self.after = self.read.back().copied().filter(|_| self.read.len() == count);
        Ok(())
    }
}

impl Held {
    /// Returns the entry of a pending message.
    fn entry(&self) -> (i64, Timestamp) {
        (self.part, self.due)
    }
}

impl Tx<'_> {
    /// Adds an entry for a message without one. Returns its part, which must be stored in the row
    /// of the message.
    pub(crate) fn wait(&mut self, topic: i64, due: Timestamp, number: i64) -> Sql<i64> {
        let part = self.part_to_fill(topic)?;
        self.put_in(topic, (part, due), number)?;
        Ok(part)
    }

    /// Adds an entry. A stale entry of the same message may already be there.
    fn put_in(&self, topic: i64, (part, due): (i64, Timestamp), number: i64) -> Sql<()> {
        self.sql("INSERT OR IGNORE INTO waiting VALUES (?1, ?2, ?3, ?4)")?
            .execute((topic, part, due.0, number))?;
        Ok(())
    }

    pub(crate) fn wait_no_longer(&self, held: &Held) -> Sql<()> {
        self.take_out(held, held.entry())
    }

    fn take_out(&self, held: &Held, (part, due): (i64, Timestamp)) -> Sql<()> {
        self.sql(
            "DELETE FROM waiting WHERE in_topic = ?1 AND in_part = ?2 AND due_at = ?3 AND message = ?4",
        )?
        .execute((held.topic, part, due.0, held.number))?;
        Ok(())
    }

    /// Changes the due time of a pending message. Returns its new part and the entry that it leaves
    /// behind; both must be stored in its row.
    pub(crate) fn wait_instead(
        &mut self,
        held: &Held,
        due: Timestamp,
    ) -> Sql<(i64, Option<(i64, Timestamp)>)> {
        // With little room, remove the old entry.
        if self.is_frugal {
            self.forget_wait(held)?;
            return Ok((self.wait(held.topic, due, held.number)?, None));
        }
        let part = self.part_to_fill(held.topic)?;
        if (part, due) == held.entry() {
            return Ok((part, held.left));
        }
        if held.left.is_some() {
            self.wait_no_longer(held)?;
        }
        self.put_in(held.topic, (part, due), held.number)?;
        Ok((part, held.left.or(Some(held.entry())).filter(|left| *left != (part, due))))
    }

    /// Removes the entries of a message whose row is being removed.
    pub(crate) fn forget_wait(&self, held: &Held) -> Sql<()> {
        let was_dropped = matches!(held.state, State::Cancelled | State::Discarded);
        if held.phase == Phase::Waits || was_dropped {
            self.wait_no_longer(held)?;
        }
        held.left.map_or(Ok(()), |entry| self.take_out(held, entry))
    }

    /// Removes the stale entries of a part up to and including this one.
    pub(crate) fn clear_until(&self, topic: i64, part: i64, (due, number): Entry) -> Sql<()> {
        self.sql(
            "DELETE FROM waiting WHERE in_topic = ?1 AND in_part = ?2 AND (due_at, message) <= (?3, ?4)",
        )?
        .execute((topic, part, due.0, number))?;
        Ok(())
    }

    /// Returns the first due messages of a topic, in order. `sql` reads a message by its number if
    /// it is pending under an entry, as in [`waits_under`]. Skips a bounded number of stale entries
    /// each time, and removes those at the front.
    pub(crate) fn first_due<T>(
        &mut self,
        sql: &'static str,
        topic: i64,
        most: usize,
        read: fn(&Row<'_>) -> Sql<T>,
    ) -> Sql<Found<T>> {
        let mut found = Found { due: Vec::new(), is_more: false };
        let mut parts: Vec<_> = self.parts(topic)?.iter().copied().map(Due::of).collect();
        let at_once = (most / parts.len().max(1)).clamp(FEW, CHUNK);
        let (mut passed, mut message) = (0, self.sql(sql)?);
        parts.iter_mut().try_for_each(|part| part.fill(self, topic, at_once))?;
        loop {
            let first = parts.iter_mut().filter(|part| !part.read.is_empty());
            let Some(part) = first.min_by_key(|part| part.read[0]) else { break };
            if found.due.len() == most || passed == CHUNK {
                found.is_more = true;
                break;
            }
            let Some(entry) = part.read.pop_front() else { break };
            let (due, number) = entry;
            match message.query_row((number, topic, part.part, due.0), read).optional()? {
                Some(message) => {
                    found.due.push(message);
                    part.has_found = true;
                }
                None => {
                    passed += 1;
                    if !part.has_found {
                        part.front = Some(entry);
                    }
                }
            }
            part.fill(self, topic, at_once)?;
        }
        // With little room, skip writes that are not needed.
        if !self.is_frugal || found.due.is_empty() {
            for part in parts {
                part.front.map_or(Ok(()), |entry| self.clear_until(topic, part.part, entry))?;
            }
        }
        Ok(found)
    }

    /// Returns the first due time of a topic. After many stale entries it is the due time of one of
    /// them; the search at that time then finds the next.
    pub(crate) fn next_due(&mut self, topic: i64) -> Sql<Option<Timestamp>> {
        let (mut first, mut passed): (Option<Timestamp>, usize) = (None, 0);
        for part in self.parts(topic)?.to_vec() {
            let next = self.next_due_in(topic, part, CHUNK - passed)?;
            first = first.into_iter().chain(next.due).min();
            passed += next.passed;
            if next.is_empty {
                self.part_is_empty(topic, part);
            }
        }
        Ok(first)
    }

    /// Returns the first due time of one part, skipping at most `most` stale entries.
    fn next_due_in(&self, topic: i64, part: i64, most: usize) -> Sql<Next> {
        let (mut passed, mut is_past) = (0, false);
        let (mut next, mut last) = (None, None);
        {
            let mut statement = self.sql(concat!(
                "SELECT due_at, waiting.message, EXISTS (SELECT 1 FROM message WHERE ",
                waits_here!(),
                ") FROM waiting WHERE in_topic = ?1 AND in_part = ?2 ORDER BY due_at, waiting.message"
            ))?;
            let mut rows = statement.query((topic, part))?;
            while let Some(row) = rows.next()? {
                let due = Timestamp(row.get(0)?);
                if passed == most || row.get(2)? {
                    next = Some(due);
                    break;
                }
                is_past |= due <= self.now;
                last = Some((due, row.get(1)?));
                passed += 1;
            }
        }
        let mut is_empty = next.is_none() && passed == 0;
        // With little room, skip writes that are not needed.
        if let Some(entry) = last
            && (is_past || passed > PASSED)
            && !self.is_frugal
        {
            self.clear_until(topic, part, entry)?;
            is_empty = next.is_none();
        }
        Ok(Next { due: next, passed, is_empty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sqlite, SqliteSettings, flow::Promoted};
    use dwell_core::{
        Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport, VirtualClock,
    };
    use std::{slice::from_ref, time::Duration};

    #[tokio::test]
    async fn search_skips_and_removes_a_bounded_number_of_stale_entries() {
        let clock = VirtualClock::new();
        let sqlite = Sqlite::open(SqliteSettings::memory(), Seams::virtual_time(clock.clone(), 1)).unwrap();
        let mail = Subscription::new("orders", "mail");
        sqlite.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
        let alive = Envelope::new(Address::topic("orders"), Message::new("alive", "orders.placed", "42"))
            .due(Due::After(Duration::from_secs(1)));
        sqlite.producer().await.unwrap().send(&[alive]).await.remove(0).unwrap();
        let file = sqlite.0.file();
        let dead = 2 * CHUNK as i64 + 500;
        // Entries without messages, alternating between two parts, all before the live message.
        let fill = move |tx: &mut Tx<'_>| -> Sql<i64> {
            let topic = tx.sql("SELECT in_topic FROM waiting")?.query_row([], |row| row.get(0))?;
            tx.cache.parts.remove(&topic);
            for n in 0..dead {
                tx.put_in(topic, (n % 2, tx.now), 1_000_000 + n)?;
            }
            Ok(topic)
        };
        let topic = file.write(1, fill).await.unwrap();
        clock.advance(Duration::from_secs(1)).await;
        for (moved, is_more, left) in [(0, true, 1501), (0, true, 501), (1, false, 0)] {
            let look = move |tx: &mut Tx<'_>| -> Sql<(Promoted, i64)> {
                let promoted = tx.promote(topic, 10)?;
                let left = tx.sql("SELECT count(*) FROM waiting")?.query_row([], |row| row.get(0))?;
                Ok((promoted, left))
            };
            let (promoted, entries) = file.write(1, look).await.unwrap();
            assert_eq!((promoted.moved, promoted.is_more, entries), (moved, is_more, left));
            assert!(!promoted.is_stuck, "the file has room");
        }
    }
}
