//! What waits, by its due time. Each message that waits has an entry here, in one of the parts of its topic.
//!
//! ```text
//!   in_topic  in_part  due_at  message
//!       7        0      10:00      1
//!       7        0      10:15      2      is passed over
//!       7        0      10:20      3      was cancelled, and is passed over
//!       7        1      10:05      2      was rescheduled: its row knows both entries
//! ```
//!
//! What is cancelled or discarded leaves its entry, and what is rescheduled leaves its first one; that is passed over when its
//! time comes. To take it out at once would write a page of its own among a million, where at its time all that goes lies
//! side by side. A record that is removed takes its entries along: there are never more than these two, and its row knows
//! both. For the same reason there are parts, see [`parts`](crate::parts).
//!
//! Who looks for what is due passes a bounded number of entries each time, and takes those in front out: however many were
//! cancelled for one instant, nobody is held up by all of them.

use crate::{
    fault::Sql,
    flow::CHUNK,
    row::{Held, Phase},
    tx::Tx,
};
use dwell_core::{State, Timestamp};
use rusqlite::{OptionalExtension, Row};
use std::collections::VecDeque;

/// So many that do not wait any more are passed over each time, before they are taken out.
const PASSED: usize = 64;

/// At least so many entries of a part are read at a time.
const FEW: usize = 16;

/// Whether a message waits under an entry of `waiting`: one that it does not wait under says nothing.
macro_rules! waits_here {
    () => {
        "number = waiting.message AND phase = 0 AND topic = in_topic AND part = in_part AND due = due_at"
    };
}

/// The messages that wait.
macro_rules! waiting {
    () => {
        concat!("waiting CROSS JOIN message ON ", $crate::waiting::waits_here!())
    };
}

/// The message that waits under an entry: of this number, in this topic and part, due then.
macro_rules! waits_under {
    () => {
        "message WHERE number = ?1 AND phase = 0 AND topic = ?2 AND part = ?3 AND due = ?4"
    };
}
pub(crate) use {waiting, waits_here, waits_under};

/// What was found of what is due.
pub(crate) struct Found<T> {
    /// In the order of due times.
    pub(crate) due: Vec<T>,
    /// Not all entries were looked at.
    pub(crate) is_more: bool,
}

/// A due time, and the number of a message.
type Entry = (Timestamp, i64);

/// What comes next of one part.
struct Next {
    due: Option<Timestamp>,
    /// So many entries before it are ones that nothing waits under.
    passed: usize,
    /// There are no entries, not even such ones.
    is_empty: bool,
}

/// What is due of one part, in order, some at a time.
struct Due {
    part: i64,
    read: VecDeque<Entry>,
    /// The last that was read; `None` once there is no more.
    after: Option<Entry>,
    /// The last of those in front that nothing waits under.
    front: Option<Entry>,
    /// There was one that something waits under.
    has_found: bool,
}

impl Due {
    fn of(part: i64) -> Self {
        let before_all = (Timestamp(i64::MIN), i64::MIN);
        Self { part, read: VecDeque::new(), after: Some(before_all), front: None, has_found: false }
    }

    /// Makes sure that the next one is there, if there is one.
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
    /// The entry that it waits under, if it waits.
    fn entry(&self) -> (i64, Timestamp) {
        (self.part, self.due)
    }
}

impl Tx<'_> {
    /// A message waits that has no entry. Returns the part that it is in now, which its row must know.
    pub(crate) fn wait(&mut self, topic: i64, due: Timestamp, number: i64) -> Sql<i64> {
        let part = self.part_to_fill(topic)?;
        self.put_in(topic, (part, due), number)?;
        Ok(part)
    }

    /// What it has left there before may still be there.
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

    /// What waits is due at another time. Returns the part that it is in now, and the entry that it has left, both of which
    /// its row must know.
    pub(crate) fn wait_instead(
        &mut self,
        held: &Held,
        due: Timestamp,
    ) -> Sql<(i64, Option<(i64, Timestamp)>)> {
        // Where there is hardly any room, nothing is left behind.
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

    /// The row of this message goes: so do the entries that it may have.
    pub(crate) fn forget_wait(&self, held: &Held) -> Sql<()> {
        let was_dropped = matches!(held.state, State::Cancelled | State::Discarded);
        if held.phase == Phase::Waits || was_dropped {
            self.wait_no_longer(held)?;
        }
        held.left.map_or(Ok(()), |entry| self.take_out(held, entry))
    }

    /// None of what comes before this one in its part waits any more, nor does this one.
    pub(crate) fn clear_until(&self, topic: i64, part: i64, (due, number): Entry) -> Sql<()> {
        self.sql(
            "DELETE FROM waiting WHERE in_topic = ?1 AND in_part = ?2 AND (due_at, message) <= (?3, ?4)",
        )?
        .execute((topic, part, due.0, number))?;
        Ok(())
    }

    /// The first of what is due in a topic, in order. `sql` reads a message by its number if it waits under an entry, as
    /// [`waits_under`] has it. No more than some entries that nothing waits under are passed over each time, however many
    /// there are, and those in front are taken out.
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
        // Where there is hardly any room, what need not be written is not.
        if !self.is_frugal || found.due.is_empty() {
            for part in parts {
                part.front.map_or(Ok(()), |entry| self.clear_until(topic, part.part, entry))?;
            }
        }
        Ok(found)
    }

    /// When the first message of this topic is due. Where a great many in front do not wait any more, it is one of those: who
    /// looks then finds the next.
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

    /// The same of one part. No more than so many entries are passed over.
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
        // Where there is hardly any room, what need not be written is not.
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
    async fn who_looks_for_what_is_due_passes_a_bounded_number_of_entries_and_takes_them_out() {
        let clock = VirtualClock::new();
        let sqlite = Sqlite::open(SqliteSettings::memory(), Seams::virtual_time(clock.clone(), 1)).unwrap();
        let mail = Subscription::new("orders", "mail");
        sqlite.provision(&[], from_ref(&mail), OnMissing::Create).await.unwrap();
        let alive = Envelope::new(Address::topic("orders"), Message::new("alive", "orders.placed", "42"))
            .due(Due::After(Duration::from_secs(1)));
        sqlite.producer().await.unwrap().send(&[alive]).await.remove(0).unwrap();
        let file = sqlite.0.file();
        let dead = 2 * CHUNK as i64 + 500;
        // Of messages that are not there, in turns in each of two parts, and all of them before the one that is.
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
            assert!(!promoted.is_stuck, "there is room");
        }
    }
}
