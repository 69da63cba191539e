//! The forwarder: what is due in a store goes to the broker that it is for.
//!
//! It is the scheduler of every broker that cannot wait, the outbox (due at once), and the relay between brokers: one
//! loop that leases what is due, sends it on, and settles. Any number of forwarders share the work of one store, as
//! any consumers do.
//!
//! What can go wrong, and what happens then:
//!
//! * The target does not answer, refuses us, or is full: the message waits, without limit, since it is not its fault.
//!   One topic that fails holds up only itself: its messages come due again after a backoff of that topic. If nothing
//!   at all goes through, the broker is away: the forwarder probes with a few messages and leaves the rest unleased.
//! * The message itself can never be sent (too large, no such target): it is parked among the dead letters of
//!   [`FORWARD_TOPIC`], with the reason `unroutable`, where people see it and can replay it.
//! * Sent, but the settlement failed: it is sent again after the lease. That duplicate is explained by the fault.

use crate::{
    backoff::Backoff,
    delay::{Detour, FORWARD_TOPIC},
    gaps::unconfirmed,
    rules::{Rejection, stamp},
    spawn::or_stop,
};
use dwell_core::{
    Action, Address, Consumer, Delivery, Due, Envelope, Error, ErrorKind, LeaseId, Note, OnMissing, Outcome,
    Producer, Result, Seams, Sent, Settle, Subscription, Text, Transport, wire,
};
use futures_util::future::{Either, select};
use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Messages leased at one time.
const BATCH: usize = 1000;
/// Messages tried while the broker is away.
const PROBE: usize = 10;
/// How long a receive waits; the store wakes it when something is due.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// The first pause after a failure; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Sends what is due in a store to one broker.
pub struct Forwarder {
    detour: Detour,
    target: Arc<dyn Transport>,
    seams: Seams,
    /// What failed lately, by target topic.
    held: BTreeMap<Text, Backoff>,
    /// What failed lately as a whole.
    away: Backoff,
}

/// What one turn came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Sent on and settled, or sent on and to be sent again.
    pub forwarded: usize,
    /// Given up, visibly.
    pub parked: usize,
    /// Put back for later.
    pub held: usize,
}

impl Forwarder {
    /// From the store behind `detour` to `target`.
    pub fn new(detour: Detour, target: Arc<dyn Transport>, seams: Seams) -> Self {
        let backoff = || Backoff::new(PAUSE, LONGEST_PAUSE);
        Self { detour, target, seams, held: BTreeMap::new(), away: backoff() }
    }

    /// The subscription in the store that messages for `via` wait in.
    pub fn subscription(via: impl Into<Text>) -> Subscription {
        Subscription::new(FORWARD_TOPIC, via)
    }

    /// Makes the subscription in the store. Before this, nothing can be stored for the broker.
    pub async fn provision(detour: &Detour, on_missing: OnMissing) -> Result<()> {
        detour.store.provision(&[], &[Self::subscription(detour.via.clone())], on_missing).await
    }

    /// Forwards until told to stop; ends with an error if it has to be started again.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let from = self.detour.store.consumer(Self::subscription(self.detour.via.clone())).await?;
        let result = loop {
            if let Some(pause) = self.away.pause() {
                or_stop(self.seams.clock.sleep(pause), &mut stop).await;
            }
            let max = if self.away.is_failing() { PROBE } else { BATCH };
            let Some(batch) = or_stop(from.receive(max, WAIT, None), &mut stop).await else { break Ok(()) };
            match batch {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => {
                    self.turn(&*from, batch).await;
                }
                Err(error) => break Err(error),
            }
        };
        let closed = from.close().await;
        result.and(closed)
    }

    /// Sends one batch on and settles it.
    pub async fn turn(&mut self, from: &dyn Consumer, batch: Vec<Delivery>) -> Turn {
        let now = self.seams.clock.elapsed();
        let mut sending = vec![];
        let mut settles = vec![];
        let mut turn = Turn::default();
        for delivery in batch {
            match unwrap(&delivery) {
                // A topic that failed a moment ago is not asked again before its pause is over.
                Some(envelope)
                    if self.held.get(envelope.to.topic_name()).is_some_and(|held| held.holds(now)) =>
                {
                    settles.push(self.hold(delivery, &envelope, None));
                    turn.held += 1;
                }
                Some(envelope) => sending.push((delivery, envelope)),
                None => {
                    let text = format!("it has no `{}` header: nobody knows where it is for", wire::TO_TOPIC);
                    settles.push(self.park(delivery, None, &Error::new(ErrorKind::Invalid, text)));
                    turn.parked += 1;
                }
            }
        }
        let (deliveries, envelopes): (Vec<_>, Vec<_>) = sending.into_iter().unzip();
        let results = self.send(from, &deliveries, &envelopes).await;
        for ((delivery, envelope), result) in deliveries.into_iter().zip(&envelopes).zip(results) {
            settles.push(match result {
                Ok(_) => {
                    self.held.remove(envelope.to.topic_name());
                    turn.forwarded += 1;
                    let note = self.note(Outcome::Forwarded, None);
                    Settle { delivery, action: Action::ACK, note }
                }
                Err(error) if error.is_of_the_message() => {
                    turn.parked += 1;
                    self.park(delivery, Some(&envelope.to), &error)
                }
                Err(error) => {
                    turn.held += 1;
                    self.hold(delivery, envelope, Some(&error))
                }
            });
        }
        match turn.forwarded + turn.parked {
            0 => self.away.failed(self.seams.clock.elapsed()),
            _ => self.away.succeeded(),
        }
        for unsettled in from.settle(settles).await {
            tracing::warn!(
                id = %unsettled.settle.delivery.message.id, via = %self.detour.via, error = %unsettled.error,
                "a forwarded message was not settled in the store: it will be sent again"
            );
        }
        turn
    }

    /// Sends, and keeps the leases meanwhile: a slow broker must not make the store hand them to another.
    async fn send(
        &self,
        from: &dyn Consumer,
        deliveries: &[Delivery],
        envelopes: &[Envelope],
    ) -> Vec<Result<Sent>> {
        if envelopes.is_empty() {
            return vec![];
        }
        let leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
        let producer = match self.target.producer().await {
            Ok(producer) => producer,
            Err(error) => return envelopes.iter().map(|_| Err(error.again())).collect(),
        };
        let mut results = self.send_renewing(from, &leases, &*producer, envelopes).await;
        results.resize_with(envelopes.len(), || Err(unconfirmed()));
        results
    }

    async fn send_renewing(
        &self,
        from: &dyn Consumer,
        leases: &[LeaseId],
        producer: &dyn Producer,
        envelopes: &[Envelope],
    ) -> Vec<Result<Sent>> {
        let third = Self::subscription("").lease / 3;
        let mut sending = producer.send(envelopes);
        loop {
            match select(sending, pin!(self.seams.clock.sleep(third))).await {
                Either::Left((results, _)) => return results,
                Either::Right((_, still)) => {
                    sending = still;
                    if let Err(error) = from.extend(leases.to_vec(), None).await {
                        tracing::warn!(via = %self.detour.via, %error, "could not renew the leases of a slow forward");
                    }
                }
            }
        }
    }

    /// Back to where it waited, due after a pause of its target.
    fn hold(&mut self, delivery: Delivery, envelope: &Envelope, error: Option<&Error>) -> Settle {
        let topic = envelope.to.topic_name();
        let now = self.seams.clock.elapsed();
        let held = self.held.entry(topic.clone()).or_insert_with(|| Backoff::new(PAUSE, LONGEST_PAUSE));
        if let Some(error) = error
            && !held.holds(now)
        {
            held.failed(now);
            tracing::warn!(
                via = %self.detour.via, %topic, %error, pause = ?held.rest(now),
                "the target of a forward cannot take messages now: they wait"
            );
        }
        let due = Due::After(held.rest(now));
        let error = error.map(|error| error.to_string().into());
        let note = self.note(Outcome::Released, error);
        Settle { delivery, action: Action::Move { to: self.detour.address(), due }, note }
    }

    /// Among the dead letters, visible.
    fn park(&self, mut delivery: Delivery, to: Option<&Address>, error: &Error) -> Settle {
        let text = match to {
            Some(to) => format!("cannot be sent to {to}: {error}"),
            None => error.to_string(),
        };
        tracing::error!(id = %delivery.message.id, kind = %delivery.message.kind, via = %self.detour.via, "parked: {text}");
        let now = self.seams.clock.now();
        // A replay returns to the forwarder, which tries the target again.
        stamp(
            &mut delivery.message,
            Rejection::Unroutable,
            &text,
            FORWARD_TOPIC,
            Some(&self.detour.via),
            now,
        );
        let to = Self::subscription(self.detour.via.clone())
            .dead_letter
            .expect("a forwarder keeps its dead letters");
        let note = self.note(Outcome::Parked, Some(text.into()));
        Settle { delivery, action: Action::Move { to, due: Due::NOW }, note }
    }

    fn note(&self, outcome: Outcome, error: Option<Text>) -> Note {
        Note { outcome, error, worker: self.seams.incarnation.clone() }
    }
}

/// The envelope as it was before it was stored.
fn unwrap(delivery: &Delivery) -> Option<Envelope> {
    let mut message = delivery.message.clone();
    let to = wire::take_destination(&mut message.headers)?;
    Some(Envelope::new(to, message))
}
