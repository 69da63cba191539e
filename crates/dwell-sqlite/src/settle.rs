//! Settlement of deliveries: each settlement, including moves, is part of one transaction.

use crate::{
    fault::Sql,
    flow::CHUNK,
    halt::{Halt, item, refused},
    places::Target,
    row::{Because, Content, Held, New, Phase, held},
    signals::Signal,
    tx::Tx,
};
use dwell_core::{
    Action, Address, Due, Envelope, Error, ErrorKind, LeaseId, Outcome, Settle, State, Timestamp,
};

impl Tx<'_> {
    /// Settles a batch of deliveries of one subscription. Returns those not settled.
    pub(crate) fn settle_all(&mut self, of: &Address, batch: &[Settle]) -> Sql<Vec<(usize, Error)>> {
        let mut unsettled = Vec::new();
        for (index, settle) in batch.iter().enumerate() {
            let settled = self.settle(of, settle);
            unsettled.extend(item(settled)?.err().map(|error| (index, error)));
        }
        Ok(unsettled)
    }

    fn settle(&mut self, of: &Address, settle: &Settle) -> Result<(), Halt> {
        let held = self.leased(settle.delivery.receipt.lease())?.ok_or_else(|| stale(of))?;
        let note = &settle.note;
        let worker = Some(&*note.worker);
        let error = note.error.as_deref();
        let because = Because { by: worker, worker, error, result: None };
        match &settle.action {
            Action::Ack { result } => {
                let is_dead = self.places().topics[&held.topic].is_dead;
                match end_of(note.outcome, is_dead).filter(|_| note.moved_to.is_none()) {
                    Some(ended) => {
                        self.end(&held, ended, Because { result: result.as_deref(), ..because })?;
                    }
                    None => self.remove(&held)?,
                }
                self.freed(held.place, held.key.as_ref())?;
            }
            Action::Release => self.put_back(&held, held.deliveries.saturating_sub(1), because)?,
            Action::Move { to, due } => {
                // This comes first, so that nothing changes if the target does not exist.
                let target = self.target(to)?;
                self.move_to(&held, settle, to, target, *due, because)?;
                self.freed(held.place, held.key.as_ref())?;
            }
        }
        Ok(())
    }

    fn move_to(
        &mut self,
        held: &Held,
        settle: &Settle,
        to: &Address,
        target: Target,
        due: Due,
        because: Because<'_>,
    ) -> Sql<()> {
        let (message, topic) = (&settle.delivery.message, target.topic());
        let due = self.resolve(due).max(self.now);
        let content = Content::of(message);
        if due > self.now {
            let envelope = Envelope::new(to.clone(), message.clone());
            let slot = self.slot_of_copy(topic, &envelope)?;
            if let Some(replaced) = &slot.replaces {
                self.remove(replaced)?;
            }
            let state = State::of_waiting(message.attempts, Some(settle.note.outcome));
            let home = self.home(topic, target.place(), &message.headers)?;
            let new = New {
                topic,
                place: target.place(),
                home,
                phase: Phase::Waits,
                state: self.shown(topic, state),
                schedule: Some(&*slot.name.0),
                due,
                chosen: None,
                is_copy: false,
                problem: None,
                content: &content,
            };
            self.rewrite(held, &new, because)?;
            self.expect(topic, due);
            return Ok(());
        }
        self.rewrite_ready(held, target, &content, because)
    }

    /// Rewrites a message with its current content, and makes it ready for one subscription or for
    /// all of the topic.
    pub(crate) fn rewrite_ready(
        &mut self,
        held: &Held,
        target: Target,
        content: &Content<'_>,
        because: Because<'_>,
    ) -> Sql<()> {
        let topic = target.topic();
        let places = self.destinations(target)?;
        let Some((first, others)) = places.split_first() else {
            self.unclaimed(topic);
            return self.end(held, State::Discarded, because);
        };
        let shown = self.shown(topic, State::Ready);
        let home = self.home(topic, *first, &content.message.headers)?;
        let new = New {
            topic,
            place: *first,
            home,
            phase: Phase::Ready,
            state: shown,
            schedule: None,
            due: self.now,
            chosen: None,
            is_copy: false,
            problem: None,
            content,
        };
        self.rewrite(held, &new, because)?;
        self.signal(*first, Signal::One);
        for place in others {
            let home = self.home(topic, *place, &content.message.headers)?;
            self.copy_row(held.number, topic, *place, home, shown)?;
            self.signal(*place, Signal::One);
        }
        Ok(())
    }

    /// Returns the row of this receipt, unless its lease was lost.
    fn leased(&self, lease: LeaseId) -> Sql<Option<Held>> {
        let Ok(number) = i64::try_from(lease.position) else { return Ok(None) };
        let held = self.held(number)?;
        Ok(held.filter(|held| held.phase == Phase::Leased && held.step as u64 == lease.fence))
    }

    /// Renews leases until this time. Returns those already lost.
    pub(crate) fn extend(&mut self, leases: &[LeaseId], until: Timestamp) -> Sql<Vec<LeaseId>> {
        let mut lost = Vec::new();
        for lease in leases {
            match self.leased(*lease)? {
                Some(held) => {
                    self.sql("UPDATE message SET lease_until = ?2 WHERE number = ?1")?
                        .execute((held.number, until.0))?;
                    self.expect_lease(held.place, until);
                }
                None => lost.push(*lease),
            }
        }
        Ok(lost)
    }

    /// Releases all messages leased by a consumer, uncounted. Returns whether there are more.
    pub(crate) fn give_back_from(&mut self, place: i64, consumer: i64) -> Sql<bool> {
        let held: Vec<Held> = {
            let mut statement = self.sql(concat!(
                "SELECT ",
                held!(),
                " FROM message INDEXED BY message_leased WHERE place = ?1 AND phase = 3 AND holder = ?2 LIMIT ?3"
            ))?;
            let held = statement.query_map((place, consumer, CHUNK as i64), Held::read)?;
            held.collect::<Sql<_>>()?
        };
        for held in &held {
            self.put_back(held, held.deliveries.saturating_sub(1), Because::default())?;
        }
        Ok(held.len() == CHUNK)
    }

    /// Releases messages leased for a caller that is gone, uncounted.
    pub(crate) fn give_back(&mut self, leases: &[LeaseId]) -> Sql<()> {
        for lease in leases {
            if let Some(held) = self.leased(*lease)? {
                self.put_back(&held, held.deliveries.saturating_sub(1), Because::default())?;
            }
        }
        Ok(())
    }
}

fn stale(of: &Address) -> Halt {
    refused(
        ErrorKind::Stale,
        format!(
            "this delivery of `{of}` was already settled or released, or its lease expired: drop it, another consumer \
             may have the message"
        ),
    )
}

/// Returns the final state of an acked message, or `None` if it lives on as a copy. Acking a dead
/// letter discards it.
fn end_of(outcome: Outcome, is_dead: bool) -> Option<State> {
    match outcome {
        Outcome::Deferred | Outcome::Failed | Outcome::Released => None,
        Outcome::Handled | Outcome::Forwarded if !is_dead => Some(State::Done),
        _ => Some(State::Discarded),
    }
}
