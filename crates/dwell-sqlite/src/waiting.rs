//! What waits, by its due time. Each message that waits has an entry here, in one of two ranges of its topic: what was
//! rescheduled is in one of its own, under the number of its topic with a minus.
//!
//! ```text
//!   in_topic   due_at  message
//!       -7      10:05      2      was rescheduled: `was_due` of its row is 10:15
//!        7      10:00      1
//!        7      10:15      2      is passed over
//!        7      10:20      3      was cancelled, and is passed over
//! ```
//!
//! What is cancelled or discarded leaves its entry, and what is rescheduled leaves the one in the range of all; that is
//! passed over when its time comes. To take it out at once would write a page of its own among a million, where at its time
//! all that goes lies side by side. For the same reason the new one is put where few others are. A record that is removed
//! takes its entries along: there are never more than these two, and its row knows both.
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
use rusqlite::{OptionalExtension, Row, Rows};

/// So many that do not wait any more are passed over each time, before they are taken out.
const PASSED: usize = 64;

/// Whether a message waits under an entry of `waiting`: one that it does not wait under says nothing.
macro_rules! waits_here {
    () => {
        "number = waiting.message AND phase = 0 AND topic = abs(in_topic) AND due = due_at
         AND (was_due IS NULL) = (in_topic > 0)"
    };
}

/// The messages that wait.
macro_rules! waiting {
    () => {
        concat!("waiting CROSS JOIN message ON ", $crate::waiting::waits_here!())
    };
}

/// The message that waits under an entry: of this number, in this topic, due then, and whether that is in the range of all.
macro_rules! waits_under {
    () => {
        "message WHERE number = ?1 AND phase = 0 AND topic = ?2 AND due = ?3 AND (was_due IS NULL) = ?4"
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

fn next_entry(rows: &mut Rows<'_>) -> Sql<Option<Entry>> {
    rows.next()?.map(|row| Ok((Timestamp(row.get(0)?), row.get(1)?))).transpose()
}

/// The first of the next ones of each range, and which range it is of.
fn first_of(next: [Option<Entry>; 2]) -> Option<(Entry, usize)> {
    let next = next.into_iter().enumerate();
    next.filter_map(|(range, entry)| entry.map(|entry| (entry, range))).min()
}

/// The ranges of a topic.
pub(crate) fn ranges(topic: i64) -> [i64; 2] {
    [topic, -topic]
}

impl Held {
    /// The range that its entry is in, if it waits.
    fn range(&self) -> i64 {
        if self.was_due.is_some() { -self.topic } else { self.topic }
    }
}

impl Tx<'_> {
    /// A message waits that has no entry in this range.
    pub(crate) fn wait(&self, range: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("INSERT INTO waiting VALUES (?1, ?2, ?3)")?.execute((range, due.0, number))?;
        Ok(())
    }

    pub(crate) fn wait_no_longer(&self, held: &Held) -> Sql<()> {
        self.take_out(held.range(), held.due, held.number)
    }

    fn take_out(&self, range: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("DELETE FROM waiting WHERE in_topic = ?1 AND due_at = ?2 AND message = ?3")?
            .execute((range, due.0, number))?;
        Ok(())
    }

    /// What waits is due at another time. Returns what its row is to know of the entry that it has left.
    pub(crate) fn wait_instead(&self, held: &Held, due: Timestamp) -> Sql<Option<Timestamp>> {
        // Where there is hardly any room, nothing is left behind.
        if self.is_frugal {
            self.forget_wait(held)?;
            self.wait(held.topic, due, held.number)?;
            return Ok(None);
        }
        if held.was_due.is_some() {
            self.wait_no_longer(held)?;
        }
        self.wait(-held.topic, due, held.number)?;
        Ok(held.was_due.or(Some(held.due)))
    }

    /// The row of this message goes: so do the entries that it may have.
    pub(crate) fn forget_wait(&self, held: &Held) -> Sql<()> {
        let was_dropped = matches!(held.state, State::Cancelled | State::Discarded);
        if held.phase == Phase::Waits || was_dropped {
            self.wait_no_longer(held)?;
        }
        held.was_due.map_or(Ok(()), |due| self.take_out(held.topic, due, held.number))
    }

    /// None of what comes before this one in its range waits any more, nor does this one.
    pub(crate) fn clear_until(&self, range: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("DELETE FROM waiting WHERE in_topic = ?1 AND (due_at, message) <= (?2, ?3)")?
            .execute((range, due.0, number))?;
        Ok(())
    }

    /// The first of what is due in a topic, in order. `sql` reads a message by its number if it waits under an entry, as
    /// [`waits_under`] has it. No more than some entries that nothing waits under are passed over each time, however many
    /// there are, and those in front are taken out.
    pub(crate) fn first_due<T>(
        &self,
        sql: &'static str,
        topic: i64,
        most: usize,
        read: fn(&Row<'_>) -> Sql<T>,
    ) -> Sql<Found<T>> {
        let mut found = Found { due: Vec::new(), is_more: false };
        // By range: the last one in front that nothing waits under, and whether there was one that something does.
        let (mut passed, mut front) = (0, [(None, false); 2]);
        {
            let mut message = self.sql(sql)?;
            let mut all = self.sql(
                "SELECT due_at, message FROM waiting WHERE in_topic = ?1 AND due_at <= ?2 ORDER BY due_at, message",
            )?;
            let mut rescheduled = self.sql(
                "SELECT due_at, message FROM waiting WHERE in_topic = -?1 AND due_at <= ?2 ORDER BY due_at, message",
            )?;
            let mut entries = [all.query((topic, self.now.0))?, rescheduled.query((topic, self.now.0))?];
            let mut next = [next_entry(&mut entries[0])?, next_entry(&mut entries[1])?];
            while let Some((entry, range)) = first_of(next) {
                if found.due.len() == most || passed == CHUNK {
                    found.is_more = true;
                    break;
                }
                let (due, number) = entry;
                match message.query_row((number, topic, due.0, range == 0), read).optional()? {
                    Some(message) => {
                        found.due.push(message);
                        front[range].1 = true;
                    }
                    None => {
                        passed += 1;
                        if !front[range].1 {
                            front[range].0 = Some(entry);
                        }
                    }
                }
                next[range] = next_entry(&mut entries[range])?;
            }
        }
        // Where there is hardly any room, what need not be written is not.
        if !self.is_frugal || found.due.is_empty() {
            for (range, (last, _)) in ranges(topic).into_iter().zip(front) {
                last.map_or(Ok(()), |(due, number)| self.clear_until(range, due, number))?;
            }
        }
        Ok(found)
    }

    /// When the first message of this topic is due. Where a great many in front do not wait any more, it is one of those: who
    /// looks then finds the next.
    pub(crate) fn next_due(&self, topic: i64) -> Sql<Option<Timestamp>> {
        let [all, rescheduled] = ranges(topic).map(|range| self.next_due_in(range));
        Ok([all?, rescheduled?].into_iter().flatten().min())
    }

    fn next_due_in(&self, range: i64) -> Sql<Option<Timestamp>> {
        let (mut passed, mut is_past) = (0, false);
        let (mut next, mut last) = (None, None);
        {
            let mut statement = self.sql(concat!(
                "SELECT due_at, waiting.message, EXISTS (SELECT 1 FROM message WHERE ",
                waits_here!(),
                ") FROM waiting WHERE in_topic = ?1 ORDER BY due_at, waiting.message"
            ))?;
            let mut rows = statement.query([range])?;
            while let Some(row) = rows.next()? {
                let due = Timestamp(row.get(0)?);
                next = Some(due);
                if row.get(2)? {
                    break;
                }
                is_past |= due <= self.now;
                last = Some((due, row.get(1)?));
                passed += 1;
                if passed == CHUNK {
                    break;
                }
                next = None;
            }
        }
        // Where there is hardly any room, what need not be written is not.
        if let Some((due, number)) = last
            && (is_past || passed > PASSED)
            && !self.is_frugal
        {
            self.clear_until(range, due, number)?;
        }
        Ok(next)
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
        // Of messages that are not there, in turns in each range, and all of them before the one that is.
        let fill = move |tx: &mut Tx<'_>| -> Sql<i64> {
            let topic = tx.sql("SELECT in_topic FROM waiting")?.query_row([], |row| row.get(0))?;
            for n in 0..dead {
                tx.wait(ranges(topic)[(n % 2) as usize], tx.now, 1_000_000 + n)?;
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
