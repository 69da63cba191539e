//! The forwarder: what is due in a store goes to the broker that it is for.
//!
//! It is the scheduler of every broker that cannot wait, the outbox (due at once), and the relay between brokers: one
//! loop that leases what is due, sends it on, and settles. Any number of forwarders share the work of one store, as
//! any consumers do.
//!
//! What can go wrong, and what happens then:
//!
//! * The target does not answer, refuses us, or is full: the message waits, without limit, since it is not its fault.
//!   Each topic is sent to by itself: one that fails or hangs holds up only its own messages, which come due again
//!   after a pause that grows up to a minute.
//! * The message itself can never be sent (too large, no such target): it is parked among the dead letters of
//!   [`FORWARD_TOPIC`], with the reason `unroutable`, where people see it and can replay it.
//! * Sent, but the settlement failed: it is sent again after the lease. That duplicate is explained by the fault.

use crate::{
    backoff::Backoff,
    delay::{Detour, FORWARD_TOPIC},
    gaps::unconfirmed,
    planted::{Bug, acks, planted},
    rules::{Rejection, stamp},
    spawn::stopped,
};
use dwell_core::{
    Action, Address, Attempts, BoxFuture, Clock, Consumer, Delivery, Due, Envelope, Error, ErrorKind, Note,
    OnMissing, Outcome, Result, Seams, Sent, Settle, Subscription, Text, Transport, Unsettled, wire,
};
use futures_util::{
    StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// Messages leased at one time.
const BATCH: usize = 1000;
/// How long a receive waits; the store wakes it when something is due.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// The first pause after a failure; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Settlements in the store are tried again after pauses up to this: in all, half a lease.
const LONGEST_SETTLE_PAUSE: Duration = Duration::from_secs(8);
/// How long a forwarder that stops waits for what is on its way.
const LAST_PATIENCE: Duration = Duration::from_secs(8);
/// A topic that has not answered by then no longer keeps the others waiting.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends what is due in a store to one broker.
pub struct Forwarder {
    detour: Detour,
    target: Arc<dyn Transport>,
    seams: Seams,
    /// What failed lately, by target topic.
    held: BTreeMap<Text, Backoff>,
    /// Topics that are being sent to.
    busy: BTreeSet<Text>,
    /// Of those, the ones that were sent to last, and that are worth waiting for.
    fresh: BTreeSet<Text>,
    sending: FuturesUnordered<BoxFuture<'static, Group>>,
}

/// The messages of one batch for one topic, and what became of them.
struct Group {
    topic: Text,
    messages: Vec<(Delivery, Address)>,
    results: Vec<Result<Sent>>,
}

/// What a forwarder waits for.
enum Event {
    Answered(Group),
    Received(Result<Vec<Delivery>>),
}

impl Forwarder {
    /// From the store behind `detour` to `target`.
    pub fn new(detour: Detour, target: Arc<dyn Transport>, seams: Seams) -> Self {
        let (busy, fresh) = Default::default();
        Self { detour, target, seams, held: BTreeMap::new(), busy, fresh, sending: FuturesUnordered::new() }
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
            self.settle_what_comes(&*from, PATIENCE).await;
            // Only waiting is given up for a stop, never a settlement: what was sent would be sent again.
            let event = tokio::select! {
                biased;
                () = stopped(&mut stop) => break Ok(()),
                Some(group) = self.sending.next(), if !self.sending.is_empty() => Event::Answered(group),
                received = from.receive(BATCH, WAIT, None) => Event::Received(received),
            };
            match event {
                Event::Answered(group) => self.settle(&*from, group).await,
                Event::Received(Ok(batch)) => self.send(&from, batch).await,
                Event::Received(Err(error)) => break Err(error),
            }
        };
        // What is on its way may still arrive: better settled than sent twice.
        self.fresh = self.busy.clone();
        self.settle_what_comes(&*from, LAST_PATIENCE).await;
        let closed = from.close().await;
        result.and(closed)
    }

    /// Waits for the topics that were sent to last, as long as patience lasts, and settles what comes. One that is slower
    /// no longer keeps the others waiting: its answer is taken when it comes.
    async fn settle_what_comes(&mut self, from: &dyn Consumer, patience: Duration) {
        if self.fresh.is_empty() {
            return;
        }
        let mut patience = self.seams.clock.sleep(patience);
        while !self.fresh.is_empty() {
            tokio::select! {
                biased;
                Some(group) = self.sending.next(), if !self.sending.is_empty() => self.settle(from, group).await,
                () = &mut patience => self.fresh.clear(),
            }
        }
    }

    /// Sends a batch on, each topic by itself.
    async fn send(&mut self, from: &Arc<dyn Consumer>, batch: Vec<Delivery>) {
        let now = self.seams.clock.elapsed();
        let mut groups: BTreeMap<Text, Vec<(Delivery, Envelope)>> = BTreeMap::new();
        let mut aside = vec![];
        for delivery in batch {
            match unwrap(&delivery) {
                Some(envelope) => {
                    let topic = envelope.to.topic_name().clone();
                    if self.busy.contains(&topic) {
                        // It has not answered for a while: come back later, and later still if that goes on.
                        let held = self.held.entry(topic.clone()).or_insert_with(new_backoff);
                        if !held.holds(now) {
                            held.failed(now);
                        }
                    }
                    let rest = self.held.get(&topic).map_or(Duration::ZERO, |held| held.rest(now));
                    if rest.is_zero() {
                        groups.entry(topic).or_default().push((delivery, envelope));
                    } else {
                        aside.push(self.hold(delivery, rest, None));
                    }
                }
                None => {
                    let text = format!("it has no `{}` header: nobody knows where it is for", wire::TO_TOPIC);
                    aside.push(self.park(delivery, None, &Error::new(ErrorKind::Invalid, text)));
                }
            }
        }
        for (topic, messages) in groups {
            if planted(Bug::ForwarderAcksFirst) {
                from.settle(acks(messages.iter().map(|(delivery, _)| delivery))).await;
            }
            self.busy.insert(topic.clone());
            self.fresh.insert(topic.clone());
            let (clock, target) = (self.seams.clock.clone(), self.target.clone());
            self.sending.push(Box::pin(send_group(from.clone(), target, clock, topic, messages)));
        }
        self.settle_all(&**from, aside).await;
    }

    /// Settles what one topic answered.
    async fn settle(&mut self, from: &dyn Consumer, group: Group) {
        let Group { topic, messages, results } = group;
        self.busy.remove(&topic);
        self.fresh.remove(&topic);
        let now = self.seams.clock.elapsed();
        let failure = results
            .iter()
            .find_map(|result| result.as_ref().err().filter(|error| !error.is_of_the_message()));
        match failure {
            None => {
                self.held.remove(&topic);
            }
            Some(error) => {
                let held = self.held.entry(topic.clone()).or_insert_with(new_backoff);
                held.failed(now);
                tracing::warn!(
                    via = %self.detour.via, %topic, %error, pause = ?held.rest(now),
                    "the target of a forward cannot take messages now: they wait"
                );
            }
        }
        let pause = self.held.get(&topic).map_or(PAUSE, |held| held.rest(now));
        let settles = messages.into_iter().zip(results).map(|((delivery, to), result)| match result {
            Ok(_) => Settle { delivery, action: Action::ACK, note: self.note(Outcome::Forwarded, None) },
            Err(error) if error.is_of_the_message() => self.park(delivery, Some(&to), &error),
            Err(_) if planted(Bug::ForwarderDropsWhatItCannotSend) => {
                Settle { delivery, action: Action::ACK, note: self.note(Outcome::Forwarded, None) }
            }
            Err(error) => self.hold(delivery, pause, Some(&error)),
        });
        let settles: Vec<_> = settles.collect();
        self.settle_all(from, settles).await;
    }

    /// Settles in the store, and tries again for as long as the lease surely lasts: what was sent and is not settled will
    /// be sent again.
    async fn settle_all(&mut self, from: &dyn Consumer, mut settles: Vec<Settle>) {
        let mut backoff = new_backoff();
        while !settles.is_empty() {
            let unsettled = from.settle(std::mem::take(&mut settles)).await;
            let now = self.seams.clock.elapsed();
            backoff.failed(now);
            let pause = backoff.rest(now);
            for Unsettled { settle, error } in unsettled {
                if error.kind() != ErrorKind::Stale && pause <= LONGEST_SETTLE_PAUSE {
                    settles.push(settle);
                    continue;
                }
                tracing::warn!(
                    id = %settle.delivery.message.id, via = %self.detour.via, %error,
                    "a forwarded message was not settled in the store: it will be sent again"
                );
            }
            if !settles.is_empty() {
                self.seams.clock.sleep(pause).await;
            }
        }
    }

    /// Back to where it waited, due after a pause of its target.
    fn hold(&self, mut delivery: Delivery, pause: Duration, error: Option<&Error>) -> Settle {
        // A name of its own: its sender may have sent anew under its id, and neither must replace the other.
        let fence = delivery.receipt.lease().fence;
        delivery.message.headers.set(wire::HELD, fence.to_string());
        let note = self.note(Outcome::Released, error.map(|error| error.to_string().into()));
        Settle { delivery, action: Action::Move { to: self.detour.address(), due: Due::After(pause) }, note }
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
        Note { outcome, error, worker: self.seams.incarnation.clone(), moved_to: None }
    }
}

/// Sends to one topic, and keeps the leases meanwhile: a slow broker must not make the store hand them to another.
async fn send_group(
    from: Arc<dyn Consumer>,
    target: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    topic: Text,
    messages: Vec<(Delivery, Envelope)>,
) -> Group {
    let (deliveries, envelopes): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    // Opening the producer may take as long as sending.
    let sending = Box::pin(async {
        match target.producer().await {
            Ok(producer) => producer.send(&envelopes).await,
            // No producer is never the message's fault: whatever the kind, they wait.
            Err(error) => {
                let again = |_| Err(Error::new(ErrorKind::Unavailable, error.to_string()));
                envelopes.iter().map(again).collect()
            }
        }
    });
    let mut results = renewing(&*from, &deliveries, &*clock, sending).await;
    results.resize_with(envelopes.len(), || Err(unconfirmed()));
    let messages = deliveries.into_iter().zip(envelopes.into_iter().map(|envelope| envelope.to)).collect();
    Group { topic, messages, results }
}

/// What `sending` comes to; meanwhile, the leases are kept.
async fn renewing<T>(
    from: &dyn Consumer,
    deliveries: &[Delivery],
    clock: &dyn Clock,
    mut sending: impl Future<Output = T> + Unpin,
) -> T {
    let third = Forwarder::subscription("").lease / 3;
    loop {
        match select(sending, clock.sleep(third)).await {
            Either::Left((results, _)) => return results,
            Either::Right((_, still)) => {
                sending = still;
                let leases = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
                if let Err(error) = from.extend(leases, None).await {
                    tracing::warn!(%error, "could not renew the leases of a slow forward");
                }
            }
        }
    }
}

/// The envelope as it was before it was stored.
fn unwrap(delivery: &Delivery) -> Option<Envelope> {
    let mut message = delivery.message.clone();
    let to = wire::take_destination(&mut message.headers)?;
    if planted(Bug::CountsLostOnTheWay) {
        message.attempts = Attempts::default();
    }
    Some(Envelope::copy(to, message))
}

fn new_backoff() -> Backoff {
    Backoff::new(PAUSE, LONGEST_PAUSE)
}
