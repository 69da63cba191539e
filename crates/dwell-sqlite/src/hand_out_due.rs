//! Handing out what comes due at this moment. If nothing is before it, it goes straight into the hands of who asks: its row
//! is written once, where it would be written twice if it lay among what is ready first. What people see is the same.

use crate::{
    fault::Sql,
    flow::{Due, due},
    hand_out::Ask,
    row::{held, message, read_message},
    tx::{Tx, code},
};
use dwell_core::{Delivery, Message, Receipt, State, Text};
use rusqlite::Row;

/// One that is due, as its receiver gets it.
struct Whole {
    due: Due,
    problem: Option<Text>,
    message: Message,
}

impl Whole {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self {
            due: Due::read(row)?,
            problem: row.get(Due::COLUMNS)?,
            message: read_message(row, Due::COLUMNS + 1)?,
        })
    }
}

impl Tx<'_> {
    /// Hands out what is due, up to the first that has to take its turn in another way.
    pub(crate) fn hand_out_due(&mut self, ask: &Ask) -> Sql<Vec<Delivery>> {
        let mut deliveries = Vec::new();
        if ask.max == 0 || !self.is_alone(ask) || self.has_ready(ask.place, 1)? {
            return Ok(deliveries);
        }
        let is_ordered = self.places().queues[&ask.place].settings.ordered;
        for whole in self.whole_due(ask.topic, ask.max)? {
            let held = &whole.due.held;
            let is_for_it = held.place == ask.topic || held.place == ask.place;
            if !is_for_it || is_ordered && held.key.is_some() {
                break;
            }
            deliveries.push(self.lease_due(ask, whole)?);
        }
        Ok(deliveries)
    }

    /// Whether what is sent to the topic is for this subscription and no other.
    fn is_alone(&self, ask: &Ask) -> bool {
        let topic = &self.places().topics[&ask.topic];
        let is_its_name =
            self.places().queues.get(&ask.place).is_some_and(|queue| queue.settings.name == ask.name);
        is_its_name && !topic.is_dead && topic.subscribed == [ask.place]
    }

    fn whole_due(&self, topic: i64, most: usize) -> Sql<Vec<Whole>> {
        let mut statement = self.sql(concat!(
            "SELECT ",
            due!(),
            ", problem, ",
            message!(),
            " FROM message INDEXED BY message_due
             WHERE topic = ?1 AND phase = 0 AND due <= ?2 ORDER BY due, number LIMIT ?3"
        ))?;
        let whole = statement.query_map((topic, self.now.0, most as i64), Whole::read)?;
        whole.collect()
    }

    /// From waiting into a consumer's hands. That it was ready in between need not be written to be told.
    fn lease_due(&mut self, ask: &Ask, whole: Whole) -> Sql<Delivery> {
        let Whole { due, problem, message } = whole;
        let held = self.fired(due)?;
        let fence = self.next();
        self.leave(&held)?;
        self.sql(
            "UPDATE message SET place = ?2, home = ?2, phase = 3, state = ?3, step = ?4, rank = ?4, schedule = NULL,
                destination = NULL, updated_at = ?5, lease_until = ?6, holder = ?7, deliveries = deliveries + 1,
                changed_by = ?8, worker = ?8, fired = ?9
             WHERE number = ?1",
        )?
        .execute((
            held.number,
            ask.place,
            code(State::Processing),
            fence,
            self.now.0,
            self.now.after(ask.lease).0,
            ask.consumer,
            &*ask.worker,
            held.fired_code(),
        ))?;
        self.tally(ask.place, State::Processing, 1, 0);
        Ok(Delivery {
            message,
            deliveries: Some(held.deliveries.saturating_add(1)),
            due: Some(held.due),
            problem,
            receipt: Receipt::new(held.number as u64, fence as u64),
        })
    }
}
