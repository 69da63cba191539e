//! Ledger records of messages.

use crate::{
    fault::Sql,
    row::{read_bytes, read_message},
    tx::state,
};
use dwell_core::{Attempts, Record, State, Text, Timestamp, Transition};
use rusqlite::{Connection, Row};

/// Columns of a [`Found`], in its order.
macro_rules! record {
    () => {
        concat!(
            "number, step, born, state, due, created_at, updated_at, deliveries, changed_by, worker, lease_until, error,
             error_step, result, (SELECT topic FROM place WHERE place.id = message.home),
             (SELECT subscription FROM place WHERE place.id = message.home), ",
            $crate::row::message!()
        )
    };
}
pub(crate) use record;

/// Record, with the values needed for its history.
pub(crate) struct Found {
    pub(crate) number: i64,
    pub(crate) record: Record,
    step: i64,
    born: u8,
    changed_by: Option<Text>,
    error_step: Option<i64>,
}

impl Found {
    pub(crate) fn read(row: &Row<'_>) -> Sql<Self> {
        let subscription: Text = row.get(15)?;
        let record = Record {
            message: read_message(row, 16)?,
            topic: row.get(14)?,
            subscription: (!subscription.is_empty()).then_some(subscription),
            state: state(row.get(3)?),
            due: Some(Timestamp(row.get(4)?)),
            created_at: Timestamp(row.get(5)?),
            updated_at: Timestamp(row.get(6)?),
            deliveries: row.get(7)?,
            worker: row.get(9)?,
            lease_until: row.get::<_, Option<i64>>(10)?.map(Timestamp),
            error: row.get(11)?,
            result: read_bytes(row, 13)?,
            history: Vec::new(),
        };
        Ok(Self {
            number: row.get(0)?,
            step: row.get(1)?,
            born: row.get(2)?,
            changed_by: row.get(8)?,
            error_step: row.get(12)?,
            record,
        })
    }

    /// Adds the whole history: the initial state, all later states, and the current one.
    pub(crate) fn with_history(self, connection: &Connection) -> Sql<Record> {
        let mut record = self.record;
        let mut statement = connection.prepare_cached(
            "SELECT at, state, by, error, handled, failed FROM history WHERE message = ?1 ORDER BY step",
        )?;
        let past = statement.query_map([self.number], |row| {
            Ok(Transition {
                at: Timestamp(row.get(0)?),
                state: state(row.get(1)?),
                by: row.get(2)?,
                error: row.get(3)?,
                attempts: Attempts { handled: row.get(4)?, failed: row.get(5)? },
            })
        })?;
        let past = past.collect::<Sql<Vec<_>>>()?;
        let birth = Transition {
            at: record.created_at,
            state: state(self.born),
            by: None,
            error: None,
            // The first change of a message never changes its counts.
            attempts: past.first().map_or(record.message.attempts, |first| first.attempts),
        };
        let present = (self.step != self.number).then(|| Transition {
            at: record.updated_at,
            state: record.state,
            by: self.changed_by,
            error: record.error.clone().filter(|_| self.error_step == Some(self.step)),
            attempts: record.message.attempts,
        });
        for step in [birth].into_iter().chain(past).chain(present) {
            if let Some(before) = record.history.last()
                && waits(before.state)
                && step.state == State::Processing
            {
                // The state `ready` was skipped when the message was leased, and is not stored.
                let attempts = before.attempts;
                let ready = Transition { at: step.at, state: State::Ready, by: None, error: None, attempts };
                record.history.push(ready);
            }
            record.history.push(step);
        }
        Ok(record)
    }
}

fn waits(state: State) -> bool {
    matches!(state, State::Scheduled | State::Deferred | State::Retrying)
}
