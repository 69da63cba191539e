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
//! What is cancelled or rescheduled leaves its entry in the range of all, and is passed over when its time comes: to take it
//! out at once would write a page of its own among a million, where at its time all that goes lies side by side. For the
//! same reason the new one is put where few others are. A record that is removed takes its entries along: there are never
//! more than these two, and its row knows both.

use crate::{
    fault::Sql,
    flow::CHUNK,
    row::{Held, Phase},
    tx::Tx,
};
use dwell_core::{State, Timestamp};
use rusqlite::Row;

/// So many that do not wait any more are passed over each time, before they are taken out.
const PASSED: usize = 64;

/// Whether a message waits under an entry: what it does not wait under says nothing.
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
pub(crate) use {waiting, waits_here};

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
    /// A message waits that has no entry.
    pub(crate) fn wait(&self, topic: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("INSERT INTO waiting VALUES (?1, ?2, ?3)")?.execute((topic, due.0, number))?;
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

    /// The first of what is due in a topic, by a statement that finds them in a range: its parameters are that, the time, and
    /// how many at most.
    pub(crate) fn first_due<T>(
        &self,
        sql: &'static str,
        topic: i64,
        most: usize,
        read: fn(&Row<'_>) -> Sql<T>,
        rank: fn(&T) -> (Timestamp, i64),
    ) -> Sql<Vec<T>> {
        let mut found: Vec<T> = Vec::new();
        for range in ranges(topic) {
            let mut statement = self.sql(sql)?;
            for due in statement.query_map((range, self.now.0, most as i64), read)? {
                found.push(due?);
            }
        }
        found.sort_by_key(rank);
        found.truncate(most);
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
