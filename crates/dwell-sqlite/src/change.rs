//! Changes of a message by people: all its records are changed within one transaction.

use crate::{
    accept::is_same_content,
    fault::Sql,
    halt::Halt,
    places::Target,
    row::{Because, Content, Held, Phase, held, message, read_message},
    tx::Tx,
};
use bytes::Bytes;
use dwell_core::{Address, Answer, Change, Changed, Message, MessageId, Of, State, Text, wire};

/// Requested change, and its origin.
pub(crate) struct Order {
    pub(crate) id: MessageId,
    pub(crate) of: Of,
    pub(crate) change: Change,
    pub(crate) by: Text,
}

/// Record to be changed.
struct Found {
    held: Held,
    home: (Text, Option<Text>),
    message: Message,
}

impl Tx<'_> {
    pub(crate) fn change(&mut self, order: &Order) -> Result<Vec<Answer>, Halt> {
        let found = self.found(order)?;
        let targets = match &order.change {
            Change::Replay(body) => self.replay_targets(&order.id, &found, body.as_ref())?,
            _ => vec![None; found.len()],
        };
        let mut answers = Vec::new();
        // With several subscriptions to the dead letters, each has a copy, but they count as one
        // record. Under an id that was sent again with other content, they are separate records.
        let mut answered: Vec<((Text, Option<Text>), Message)> = Vec::new();
        for (found, target) in found.into_iter().zip(targets) {
            let is_dead = found.held.state == State::Dead;
            let is_copy = is_dead
                && answered
                    .iter()
                    .any(|(home, message)| *home == found.home && is_same_content(message, &found.message));
            let done = self.change_one(order, &found, target, is_copy)?;
            if is_copy {
                continue;
            }
            let changed = if done { Changed::Done } else { Changed::TooLate };
            answers.push(Answer { subscription: found.home.1.clone(), changed });
            if is_dead {
                answered.push((found.home, found.message));
            }
        }
        Ok(answers)
    }

    /// Returns whether the change could be made.
    fn change_one(
        &mut self,
        order: &Order,
        found: &Found,
        target: Option<Target>,
        is_copy: bool,
    ) -> Sql<bool> {
        let held = &found.held;
        let waits = held.phase == Phase::Waits && held.due > self.now;
        let is_ready = matches!(held.phase, Phase::Ready | Phase::Aside);
        let is_dead = held.state == State::Dead;
        let because = Because { by: Some(&*order.by), ..Because::default() };
        match &order.change {
            // What the forwarder may have sent cannot be changed any more.
            _ if wire::is_in_doubt(&found.message.headers) && !is_dead => return Ok(false),
            Change::Cancel if waits && !is_dead => self.cancel(held, because.by)?,
            // A job can be cancelled as long as no worker has it.
            Change::Cancel if is_ready && !is_dead && wire::is_job(&found.home.0, &found.message.headers) => {
                self.end(held, State::Cancelled, because)?;
                self.freed(held.place, held.key.as_ref())?;
            }
            Change::Reschedule(due) if waits && !is_dead => {
                self.reschedule(held, self.resolve(*due), because.by)?;
            }
            Change::Replay(_) | Change::Discard if is_dead && (waits || is_ready) => {
                match (&order.change, target) {
                    _ if is_copy => self.remove(held)?,
                    (Change::Replay(body), Some(target)) => {
                        let message = found.message.clone().anew(body.clone());
                        self.rewrite_ready(held, target, &Content::of(&message), because)?;
                    }
                    _ => self.end(held, State::Discarded, because)?,
                }
                self.freed(held.place, held.key.as_ref())?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the requested records; those that can be changed come first.
    fn found(&self, order: &Order) -> Sql<Vec<Found>> {
        let mut statement = self.sql(concat!(
            "SELECT ",
            held!(),
            ", (SELECT topic FROM place WHERE place.id = message.home),
               (SELECT subscription FROM place WHERE place.id = message.home), ",
            message!(),
            " FROM message INDEXED BY message_id WHERE id = ?1 ORDER BY created_at, number"
        ))?;
        let found = statement.query_map([&*order.id.0], |row| {
            let subscription: Text = row.get(Held::COLUMNS + 1)?;
            Ok(Found {
                held: Held::read(row)?,
                home: (row.get(Held::COLUMNS)?, (!subscription.is_empty()).then_some(subscription)),
                message: read_message(row, Held::COLUMNS + 2)?,
            })
        })?;
        let mut found = found.collect::<Sql<Vec<_>>>()?;
        found.retain(|found| order.of.has(&found.home.0, found.home.1.as_deref(), &found.message));
        found.sort_by_key(|found| match found.held.phase {
            Phase::Waits => found.held.due <= self.now,
            Phase::Ready | Phase::Aside => false,
            Phase::Leased | Phase::Over => true,
        });
        Ok(found)
    }

    /// Returns the target of each dead record, or an error if one has no target, before any record
    /// is changed.
    fn replay_targets(
        &mut self,
        id: &MessageId,
        found: &[Found],
        body: Option<&Bytes>,
    ) -> Result<Vec<Option<Target>>, Halt> {
        if let Some(body) = body {
            self.check_size(format_args!("`{id}`"), body.len())?;
        }
        let mut targets = Vec::new();
        for found in found {
            if found.held.state != State::Dead {
                targets.push(None);
                continue;
            }
            let (topic, Some(name)) = found.home.clone() else { return Err(Halt::from(wire::homeless(id))) };
            if topic == self.places().topics[&found.held.topic].name {
                return Err(Halt::from(wire::homeless(id)));
            }
            targets.push(Some(self.target(&Address::Subscription { topic, name })?));
        }
        Ok(targets)
    }
}
