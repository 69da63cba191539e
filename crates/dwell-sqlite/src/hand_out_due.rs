//! Direct delivery of messages that have just become due. If no ready message precedes it, a due
//! message goes straight to the receiver: its row is written once, rather than once as ready and
//! again as leased. Observers see the same.
//!
//! Messages that were scheduled together are often stored in consecutive rows and come due
//! together. Consecutive rows are written by one statement.

use crate::{
    fault::Sql,
    flow::{CHUNK, Name, name},
    hand_out::Ask,
    row::{message, read_message},
    tx::{Tx, code, state},
    waiting::{Found, waits_under},
};
use dwell_core::{Delivery, Message, Receipt, State, Text, Timestamp};
use rusqlite::Row;
use std::collections::BTreeSet;

/// Due message, with everything that its receiver gets.
struct Whole {
    number: i64,
    part: i64,
    place: i64,
    home: i64,
    state: State,
    step: i64,
    due: Timestamp,
    deliveries: u32,
    problem: Option<Text>,
    name: Option<Name>,
    message: Message,
}

/// Columns of [`Whole`], in its order.
macro_rules! whole {
    () => {
        concat!(
            "number, part, place, home, state, step, due, deliveries, problem, ",
            name!(),
            ", ",
            message!()
        )
    };
}

impl Whole {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self {
            number: row.get(0)?,
            part: row.get(1)?,
            place: row.get(2)?,
            home: row.get(3)?,
            state: state(row.get(4)?),
            step: row.get(5)?,
            due: Timestamp(row.get(6)?),
            deliveries: row.get(7)?,
            problem: row.get(8)?,
            name: Name::read(row, 9)?,
            message: read_message(row, 9 + Name::COLUMNS)?,
        })
    }
}

/// Consecutive rows that get the same values, with consecutive fences.
struct Run {
    first: i64,
    last: i64,
    fence: i64,
    has_fired: bool,
}

impl Run {
    fn goes_on_with(&self, whole: &Whole, fence: i64) -> bool {
        whole.number == self.last + 1
            && fence - self.fence == whole.number - self.first
            && whole.name.is_none() == self.has_fired
    }
}

impl Tx<'_> {
    /// Delivers due messages, up to the first one that must be ordered by another rule.
    pub(crate) fn hand_out_due(&mut self, ask: &Ask) -> Sql<Vec<Delivery>> {
        let mut deliveries = Vec::new();
        if ask.max == 0 || !self.is_alone(ask) || self.has_ready(ask.place, 1)? {
            return Ok(deliveries);
        }
        // In small batches, so that pages just read are still cached when they are written.
        while deliveries.len() < ask.max {
            let wanted = CHUNK.min(ask.max - deliveries.len());
            let before = deliveries.len();
            let Found { due, is_more } = self.whole_due(ask.topic, wanted)?;
            let found = due.len();
            self.lease_due(ask, due, &mut deliveries)?;
            // After many stale entries, stop for this time.
            if !is_more || found == 0 || deliveries.len() < before + found {
                break;
            }
        }
        Ok(deliveries)
    }

    fn lease_due(&mut self, ask: &Ask, due: Vec<Whole>, deliveries: &mut Vec<Delivery>) -> Sql<()> {
        let is_ordered = self.places().queues[&ask.place].settings.ordered;
        let (mut run, mut last): (Option<Run>, _) = (None, None);
        let mut parts = BTreeSet::new();
        for whole in due {
            let is_for_it = whole.place == ask.topic || whole.place == ask.place;
            if !is_for_it || is_ordered && whole.message.key.is_some() {
                break;
            }
            let fence = self.next();
            match &mut run {
                Some(run) if run.goes_on_with(&whole, fence) => run.last = whole.number,
                _ => {
                    let (number, has_fired) = (whole.number, whole.name.is_none());
                    let before = run.replace(Run { first: number, last: number, fence, has_fired });
                    before.map_or(Ok(()), |before| self.lease_run(ask, &before))?;
                }
            }
            last = Some((whole.due, whole.number));
            parts.insert(whole.part);
            deliveries.push(self.leave_due(ask, whole, fence)?);
        }
        if let Some(last) = last {
            parts.into_iter().try_for_each(|part| self.clear_until(ask.topic, part, last))?;
        }
        run.map_or(Ok(()), |run| self.lease_run(ask, &run))
    }

    /// Returns whether messages to the topic go to this subscription and no other.
    fn is_alone(&self, ask: &Ask) -> bool {
        let topic = &self.places().topics[&ask.topic];
        let is_its_name =
            self.places().queues.get(&ask.place).is_some_and(|queue| queue.settings.name == ask.name);
        is_its_name && !topic.is_dead && topic.subscribed == [ask.place]
    }

    fn whole_due(&mut self, topic: i64, most: usize) -> Sql<Found<Whole>> {
        let sql = concat!("SELECT ", whole!(), " FROM ", waits_under!());
        self.first_due(sql, topic, most, Whole::read)
    }

    /// Records the history of a message that is about to be written as part of a run. Topics of
    /// dead letters are never delivered this way, so no bytes are counted.
    fn leave_due(&mut self, ask: &Ask, whole: Whole, fence: i64) -> Sql<Delivery> {
        if let Some(name) = &whole.name {
            self.remember_name(ask.topic, whole.due, name)?;
        }
        self.write_past(whole.number, whole.step)?;
        self.tally(whole.home, whole.state, -1, 0);
        self.tally(ask.place, State::Processing, 1, 0);
        Ok(Delivery {
            message: whole.message,
            deliveries: Some(whole.deliveries.saturating_add(1)),
            due: Some(whole.due),
            problem: whole.problem,
            receipt: Receipt::new(whole.number as u64, fence as u64),
        })
    }

    /// Leases pending messages. The intermediate state `ready` need not be written to appear in the
    /// history. `OR FAIL` is safe because any failure rolls back the whole transaction; it spares
    /// SQLite a statement journal of the changed pages.
    fn lease_run(&self, ask: &Ask, run: &Run) -> Sql<()> {
        self.sql(
            "UPDATE OR FAIL message SET place = ?3, home = ?3, phase = 3, state = ?4, step = number + ?5, rank = number + ?5,
                schedule = NULL, destination = NULL, updated_at = ?6, lease_until = ?7, holder = ?8,
                deliveries = deliveries + 1, changed_by = ?9, worker = ?9, fired = ?10
             WHERE number BETWEEN ?1 AND ?2",
        )?
        .execute((
            run.first,
            run.last,
            ask.place,
            code(State::Processing),
            run.fence - run.first,
            self.now.0,
            self.now.after(ask.lease).0,
            ask.consumer,
            &*ask.worker,
            run.has_fired.then_some(1),
        ))?;
        Ok(())
    }
}
