//! Delivery of ready messages, in order; messages with the same key go to one consumer at a time.
//!
//! A key is *held* while a consumer leases a message with it. A message of this key that another
//! consumer finds meanwhile is put *aside*, out of the index of ready messages, so that it is found
//! once rather than by every receiver. Messages put aside are delivered at their position among the
//! messages of their key. A free key with messages put aside has at least one message in the index;
//! the receiver that finds this message also finds the others.

use crate::{
    fault::Sql,
    flow::CHUNK,
    halt::Halt,
    row::{message, read_message},
    signals::Signal,
    tx::{Tx, code},
};
use bytes::Bytes;
use dwell_core::{Delivery, Message, Receipt, State, Text, Timestamp};
use rusqlite::{OptionalExtension, Row};
use std::{collections::BTreeSet, time::Duration};

/// Maximum number of messages delivered at a time with little room, since each delivery takes some.
const FRUGAL: usize = 10;

/// Request of a receiver.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) place: i64,
    pub(crate) topic: i64,
    /// Name under which the consumer was opened. The kept messages may have been adopted by another
    /// subscription since.
    pub(crate) name: Text,
    pub(crate) consumer: i64,
    pub(crate) worker: Text,
    pub(crate) max: usize,
    pub(crate) lease: Duration,
}

/// Answer to a receiver.
#[derive(Debug)]
pub(crate) enum Look {
    Found(Vec<Delivery>),
    /// There is more work than fits one transaction.
    Again,
    /// No message before `due`, or before a lease ends at `expiry`.
    Nothing {
        due: Option<Timestamp>,
        expiry: Option<Timestamp>,
    },
}

/// Ready message.
struct Ready {
    number: i64,
    step: i64,
    rank: i64,
    home: i64,
    deliveries: u32,
    due: Timestamp,
    problem: Option<Text>,
    message: Message,
}

macro_rules! ready {
    () => {
        concat!("number, step, rank, home, deliveries, due, problem, ", message!())
    };
}

impl Ready {
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self {
            number: row.get(0)?,
            step: row.get(1)?,
            rank: row.get(2)?,
            home: row.get(3)?,
            deliveries: row.get(4)?,
            due: Timestamp(row.get(5)?),
            problem: row.get(6)?,
            message: read_message(row, 7)?,
        })
    }
}

impl Tx<'_> {
    /// Delivers ready messages, after promoting due messages, releasing expired leases and
    /// accepting rows of other programs.
    pub(crate) fn look(&mut self, ask: &Ask) -> Result<Look, Halt> {
        if self.is_abandoned {
            // This receiver may have consumed a wake-up for messages that another one must take
            // now.
            self.signal(ask.place, Signal::One);
            return Ok(Look::Again);
        }
        let frugal = self.is_frugal.then(|| Ask { max: ask.max.min(FRUGAL), ..ask.clone() });
        let ask = frugal.as_ref().unwrap_or(ask);
        // Deliveries that return unsettled would lengthen the log without limit.
        self.check_log(self.settings.max_log.saturating_mul(2), "leased messages can still be settled")?;
        let is_more_to_take_in = self.take_in()?;
        let is_more_lost = self.give_back_expired(ask.place)?;
        let mut deliveries = self.hand_out_due(ask)?;
        let is_more_due =
            deliveries.len() < ask.max.max(1) && self.promote_for(ask, deliveries.is_empty())?;
        if self.places().queues.get(&ask.place).is_none_or(|queue| queue.settings.name != ask.name) {
            return Ok(Look::Nothing { due: None, expiry: None });
        }

        let mut steps = CHUNK.max(ask.max);
        self.hand_out(ask, &mut steps, &mut deliveries)?;
        if !deliveries.is_empty() {
            return Ok(Look::Found(deliveries));
        }
        if steps == 0 {
            // Wake another receiver for the rest: this one may not return.
            self.signal(ask.place, Signal::One);
        }
        if ask.max > 0 && (is_more_due || is_more_lost || is_more_to_take_in || steps == 0) {
            return Ok(Look::Again);
        }
        let (due, expiry) = (self.next_due(ask.topic)?, self.next_expiry(ask.place)?);
        told(&mut self.cache.told, ask.topic, due);
        told(&mut self.cache.told_lease, ask.place, expiry);
        Ok(Look::Nothing { due, expiry })
    }

    /// Promotes due messages. Returns whether there are more. Returns an error if none of them has
    /// room and there are no deliveries for this receiver; existing deliveries must reach it.
    fn promote_for(&mut self, ask: &Ask, has_nothing: bool) -> Result<bool, Halt> {
        let is_enough = self.has_ready(ask.place, ask.max)?;
        let limit = if is_enough { ask.max.clamp(1, CHUNK) } else { CHUNK };
        let promoted = self.promote(ask.topic, limit)?;
        let is_held_up = promoted.moved == 0 && promoted.is_stuck;
        if is_held_up && has_nothing && !self.has_ready(ask.place, 1)? {
            // With little room, messages are processed one by one.
            return if self.promote_one(ask.topic)? { Ok(true) } else { Err(self.no_room_for_due()) };
        }
        Ok(promoted.is_more)
    }

    /// Returns whether this number of messages are ready in this place.
    pub(crate) fn has_ready(&self, place: i64, count: usize) -> Sql<bool> {
        let skip = count.clamp(1, CHUNK) as i64 - 1;
        self.sql(
            "SELECT 1 FROM message INDEXED BY message_ready WHERE place = ?1 AND phase = 1 LIMIT 1 OFFSET ?2",
        )?
        .exists((place, skip))
    }

    fn hand_out(&mut self, ask: &Ask, steps: &mut usize, deliveries: &mut Vec<Delivery>) -> Sql<()> {
        let is_ordered = self.places().queues.get(&ask.place).is_some_and(|queue| queue.settings.ordered);
        let (mut after, mut mine) = (i64::MIN, BTreeSet::new());
        while deliveries.len() < ask.max && *steps > 0 {
            let wanted = (ask.max - deliveries.len()).min(*steps);
            let found = self.ready(ask.place, after, wanted)?;
            let is_all = found.len() < wanted;
            for ready in found {
                *steps -= 1;
                after = ready.rank;
                match ready.message.key.clone().filter(|_| is_ordered) {
                    None => self.lease(ask, ready, deliveries)?,
                    Some(key) if self.is_taken(ask, &key)? => {
                        self.sql("UPDATE message SET phase = 2 WHERE number = ?1")?
                            .execute([ready.number])?;
                    }
                    Some(key) => {
                        self.lease_aside(ask, &key, ready.rank, deliveries)?;
                        mine.insert(key);
                        if deliveries.len() < ask.max {
                            self.lease(ask, ready, deliveries)?;
                        }
                    }
                }
                if deliveries.len() >= ask.max {
                    break;
                }
            }
            if is_all {
                for key in &mine {
                    self.lease_aside(ask, key, i64::MAX, deliveries)?;
                }
                break;
            }
        }
        for key in mine {
            // The holder of the key can find its next message.
            self.bring_forward(ask.place, &key)?;
        }
        if let (false, until) = (deliveries.is_empty(), self.now.after(ask.lease)) {
            self.expect_lease(ask.place, until);
            if self.has_ready(ask.place, 1)? {
                self.signal(ask.place, Signal::One);
            }
        }
        Ok(())
    }

    fn ready(&self, place: i64, after: i64, limit: usize) -> Sql<Vec<Ready>> {
        let mut statement = self.sql(concat!(
            "SELECT ",
            ready!(),
            " FROM message INDEXED BY message_ready
             WHERE place = ?1 AND phase = 1 AND rank > ?2 ORDER BY rank LIMIT ?3"
        ))?;
        let ready = statement.query_map((place, after, limit as i64), Ready::read)?;
        ready.collect()
    }

    /// Returns whether another consumer leases a message with this key.
    fn is_taken(&self, ask: &Ask, key: &Bytes) -> Sql<bool> {
        self.sql(
            "SELECT 1 FROM message INDEXED BY message_held
             WHERE place = ?1 AND key = ?2 AND phase = 3 AND holder <> ?3 LIMIT 1",
        )?
        .exists((ask.place, &**key, ask.consumer))
    }

    /// Delivers the messages of this key that were put aside, up to that rank.
    fn lease_aside(
        &mut self,
        ask: &Ask,
        key: &Bytes,
        before: i64,
        deliveries: &mut Vec<Delivery>,
    ) -> Sql<()> {
        while deliveries.len() < ask.max {
            let aside = self
                .sql(concat!(
                    "SELECT ",
                    ready!(),
                    " FROM message INDEXED BY message_aside
                     WHERE place = ?1 AND key = ?2 AND phase = 2 AND rank < ?3 ORDER BY rank LIMIT 1"
                ))?
                .query_row((ask.place, &**key, before), Ready::read)
                .optional()?;
            let Some(aside) = aside else { break };
            self.lease(ask, aside, deliveries)?;
        }
        Ok(())
    }

    /// Makes the first message of this key that was put aside ready again.
    pub(crate) fn bring_forward(&mut self, place: i64, key: &Bytes) -> Sql<bool> {
        let brought = self
            .sql(
                "UPDATE message SET phase = 1 WHERE number = (
                     SELECT number FROM message INDEXED BY message_aside
                     WHERE place = ?1 AND key = ?2 AND phase = 2 ORDER BY rank LIMIT 1
                 )",
            )?
            .execute((place, &**key))?;
        Ok(brought > 0)
    }

    /// Called when a message with this key has left the place for good. If no other message of the
    /// key is leased, the first message put aside becomes ready.
    pub(crate) fn freed(&mut self, place: i64, key: Option<&Bytes>) -> Sql<()> {
        let Some(key) = key else { return Ok(()) };
        if !self.places().queues.get(&place).is_some_and(|queue| queue.settings.ordered) {
            return Ok(());
        }
        let is_held = self
            .sql(
                "SELECT 1 FROM message INDEXED BY message_held
                 WHERE place = ?1 AND key = ?2 AND phase = 3 LIMIT 1",
            )?
            .exists((place, &**key))?;
        if !is_held && self.bring_forward(place, key)? {
            self.signal(place, Signal::One);
        }
        Ok(())
    }

    fn lease(&mut self, ask: &Ask, ready: Ready, deliveries: &mut Vec<Delivery>) -> Sql<()> {
        self.write_past(ready.number, ready.step)?;
        let (fence, shown) = (self.next(), self.shown(ask.topic, State::Processing));
        self.sql(
            "UPDATE message SET phase = 3, state = ?2, step = ?3, updated_at = ?4, lease_until = ?5, holder = ?6,
                worker = ?7, changed_by = ?7, deliveries = deliveries + 1
             WHERE number = ?1",
        )?
        .execute((
            ready.number,
            code(shown),
            fence,
            self.now.0,
            self.now.after(ask.lease).0,
            ask.consumer,
            &*ask.worker,
        ))?;
        self.tally(ready.home, self.shown(ask.topic, State::Ready), -1, 0);
        self.tally(ready.home, shown, 1, 0);
        deliveries.push(Delivery {
            message: ready.message,
            deliveries: Some(ready.deliveries.saturating_add(1)),
            due: Some(ready.due),
            problem: ready.problem,
            receipt: Receipt::new(ready.number as u64, fence as u64),
        });
        Ok(())
    }
}

/// Records the time at which every receiver that waits from now on wakes up.
fn told(all: &mut std::collections::HashMap<i64, Timestamp>, of: i64, time: Option<Timestamp>) {
    match time {
        Some(time) => all.insert(of, time),
        None => all.remove(&of),
    };
}
