//! What waits, by its due time. Each message that waits has an entry here.
//!
//! What is cancelled leaves its entry, and is passed over when its time comes: to take it out at once would write a page of
//! its own among a million, where at its time all that goes lies side by side. A record that is removed takes it along.

use crate::{
    fault::Sql,
    flow::CHUNK,
    row::{Held, Phase},
    tx::Tx,
};
use dwell_core::{State, Timestamp};

/// So many that do not wait any more are passed over each time, before they are taken out.
const PASSED: usize = 64;

/// The messages that wait: an entry that its message does not wait under says nothing.
macro_rules! waiting {
    () => {
        "waiting CROSS JOIN message
             ON message.number = waiting.message AND phase = 0 AND topic = in_topic AND due = due_at"
    };
}
pub(crate) use waiting;

impl Tx<'_> {
    pub(crate) fn wait(&self, topic: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("INSERT INTO waiting VALUES (?1, ?2, ?3)")?.execute((topic, due.0, number))?;
        Ok(())
    }

    pub(crate) fn wait_no_longer(&self, held: &Held) -> Sql<()> {
        self.sql("DELETE FROM waiting WHERE in_topic = ?1 AND due_at = ?2 AND message = ?3")?.execute((
            held.topic,
            held.due.0,
            held.number,
        ))?;
        Ok(())
    }

    /// The row of this message goes: so does its entry, if it may have one.
    pub(crate) fn forget_wait(&self, held: &Held) -> Sql<()> {
        let was_dropped = matches!(held.state, State::Cancelled | State::Discarded);
        if held.phase == Phase::Waits || was_dropped { self.wait_no_longer(held) } else { Ok(()) }
    }

    /// None of what comes before this one in its topic waits any more, nor does this one.
    pub(crate) fn wait_no_longer_until(&self, topic: i64, due: Timestamp, number: i64) -> Sql<()> {
        self.sql("DELETE FROM waiting WHERE in_topic = ?1 AND (due_at, message) <= (?2, ?3)")?
            .execute((topic, due.0, number))?;
        Ok(())
    }

    /// When the first message of this topic is due. Where a great many in front do not wait any more, it is one of those: who
    /// looks then finds the next.
    pub(crate) fn next_due(&self, topic: i64) -> Sql<Option<Timestamp>> {
        let (mut passed, mut is_past) = (0, false);
        let (mut next, mut last) = (None, None);
        {
            let mut statement = self.sql(
                "SELECT due_at, waiting.message, EXISTS (
                     SELECT 1 FROM message
                     WHERE number = waiting.message AND phase = 0 AND topic = in_topic AND due = due_at
                 )
                 FROM waiting WHERE in_topic = ?1 ORDER BY due_at, waiting.message",
            )?;
            let mut rows = statement.query([topic])?;
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
            self.wait_no_longer_until(topic, due, number)?;
        }
        Ok(next)
    }
}
