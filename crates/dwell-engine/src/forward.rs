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
//!   after a pause that grows up to a minute. A message that may have been sent all the same is marked as such in its
//!   name, so that nobody is told that it is cancelled.
//! * The target is slow: what comes due for it meanwhile is next, in the order of due times.
//! * The message itself can never be sent (too large, no such target): it is parked among the dead letters of
//!   its [topic](crate::forward_topic), with the reason `unroutable`, where people see it and can replay it.
//! * Sent, but the settlement failed: it is sent again after the lease. That duplicate is explained by the fault.

use crate::{
    backoff::Backoff,
    delay::{Detour, forward_topic},
    gaps::unconfirmed,
    planted::{Bug, acks, planted},
    rules::{Rejection, stamp},
    spawn::stopped,
};
use dwell_core::{
    Action, Address, Attempts, BoxFuture, Clock, Consumer, Delivery, Due, Envelope, Error, ErrorKind,
    LeaseId, Message, MessageFields, Note, OnMissing, Outcome, Result, Seams, Sent, Settle, Subscription,
    Text, Transport, Unsettled, wire,
};
use futures_util::{
    StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::sync::{oneshot, watch};

/// Messages leased at one time.
const BATCH: usize = 1000;
/// How long a receive waits; the store wakes it when something is due.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// With nothing to do, the loop still goes round this often, so that people see that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The first pause after a failure; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Settlements in the store are tried again after pauses up to this: in all, half a lease.
const LONGEST_SETTLE_PAUSE: Duration = Duration::from_secs(8);
/// How long a forwarder that stops waits for what is on its way.
const LAST_PATIENCE: Duration = Duration::from_secs(8);
/// A topic that has not answered by then no longer keeps the others waiting.
const PATIENCE: Duration = Duration::from_secs(1);
/// What may be on its way to one topic. If more comes due while it does not answer, that waits in the store again.
const MOST_ON_ITS_WAY: usize = 2 * BATCH;

/// Sends what is due in a store to one broker.
pub struct Forwarder {
    detour: Detour,
    target: Arc<dyn Transport>,
    seams: Seams,
    /// What failed lately, by target topic.
    held: BTreeMap<Text, Backoff>,
    /// Topics that are being sent to.
    busy: BTreeMap<Text, Queue>,
    /// Of those, the ones that were sent to last, and that are worth waiting for.
    fresh: BTreeSet<Text>,
    /// Everything that is on its way, to the target or back to the store. None of it waits for any other: while one hangs,
    /// the leases of the others are kept.
    on_its_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// When this loop last went round, for those who watch over it.
    tick: Arc<AtomicI64>,
}

/// What is on its way to one topic: one group after the other, so that its messages keep their order.
struct Queue {
    groups: usize,
    messages: usize,
    /// Tells whether the topic took the last of them.
    last: oneshot::Receiver<bool>,
}

/// The messages of one batch for one topic, and what became of them.
struct Group {
    topic: Text,
    /// As many as were lined up; of those, some may be others' by now.
    lined_up: usize,
    messages: Vec<(Delivery, Address)>,
    results: Vec<Result<Sent>>,
}

/// What was on its way, and is done.
enum Done {
    /// A topic has answered.
    Sent(Group),
    /// The store has answered.
    Settled,
}

/// What a forwarder waits for.
enum Event {
    Done(Done),
    Received(Result<Vec<Delivery>>),
}

impl Forwarder {
    /// From the store behind `detour` to `target`.
    pub(crate) fn new(
        detour: Detour,
        target: Arc<dyn Transport>,
        seams: Seams,
        tick: Arc<AtomicI64>,
    ) -> Self {
        let (busy, fresh) = Default::default();
        let on_its_way = FuturesUnordered::new();
        Self { detour, target, seams, held: BTreeMap::new(), busy, fresh, on_its_way, tick }
    }

    /// The subscription in the store that messages for `via` wait in.
    pub fn subscription(via: impl Into<Text>) -> Subscription {
        let via = via.into();
        Subscription::new(forward_topic(&via), via)
    }

    /// Makes the subscription in the store. Before this, nothing can be stored for the broker.
    pub async fn provision(detour: &Detour, on_missing: OnMissing) -> Result<()> {
        detour.store.provision(&[], &[Self::subscription(detour.via.clone())], on_missing).await
    }

    /// Forwards until told to stop; ends with an error if it has to be started again.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let from = self.detour.store.consumer(Self::subscription(self.detour.via.clone())).await?;
        let result = loop {
            self.wait_for_the_fresh(&from).await;
            self.tick.store(self.seams.clock.now().0, Ordering::Relaxed);
            // Only waiting is given up for a stop, never a settlement: what was sent would be sent again.
            let event = tokio::select! {
                biased;
                () = stopped(&mut stop) => break Ok(()),
                Some(done) = self.on_its_way.next(), if !self.on_its_way.is_empty() => Event::Done(done),
                received = from.receive(BATCH, WAIT, None) => Event::Received(received),
                () = self.seams.clock.tick(HEARTBEAT) => continue,
            };
            match event {
                Event::Done(done) => self.take_in(&from, done),
                Event::Received(Ok(batch)) => self.send(&from, &stop, batch).await,
                Event::Received(Err(error)) => break Err(error),
            }
        };
        self.wait_for_the_last(&from).await;
        let closed = from.close().await;
        result.and(closed)
    }

    /// Waits for the topics that were sent to last, as long as patience lasts. One that is slower no longer keeps the
    /// others waiting: its answer is taken when it comes.
    async fn wait_for_the_fresh(&mut self, from: &Arc<dyn Consumer>) {
        if self.fresh.is_empty() {
            return;
        }
        let mut patience = self.seams.clock.sleep(PATIENCE);
        while !self.fresh.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.on_its_way.next(), if !self.on_its_way.is_empty() => self.take_in(from, done),
                () = &mut patience => self.fresh.clear(),
            }
        }
    }

    /// What is on its way may still arrive: better settled than sent twice.
    async fn wait_for_the_last(&mut self, from: &Arc<dyn Consumer>) {
        let mut patience = self.seams.clock.sleep(LAST_PATIENCE);
        while !self.on_its_way.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.on_its_way.next() => self.take_in(from, done),
                () = &mut patience => return,
            }
        }
    }

    fn take_in(&mut self, from: &Arc<dyn Consumer>, done: Done) {
        if let Done::Sent(group) = done {
            let settles = self.sort_out(group);
            self.settle(from, settles);
        }
    }

    /// Sends a batch on, each topic by itself.
    async fn send(&mut self, from: &Arc<dyn Consumer>, stop: &watch::Receiver<bool>, batch: Vec<Delivery>) {
        let now = self.seams.clock.elapsed();
        let mut groups: BTreeMap<Text, Vec<(Delivery, Envelope)>> = BTreeMap::new();
        let mut aside = vec![];
        for delivery in batch {
            if let Some(problem) = delivery.problem.clone() {
                // It cannot be read as it was sent: the target must not take it for a valid message.
                aside.push(self.park(delivery, None, &Error::new(ErrorKind::Invalid, &*problem)));
                continue;
            }
            match unwrap(&delivery) {
                Some(envelope) => {
                    let topic = envelope.to.topic_name().clone();
                    let on_its_way = self.busy.get(&topic).map_or(0, |queue| queue.messages);
                    if on_its_way >= MOST_ON_ITS_WAY {
                        // It has not answered for a while: come back later, and later still if that goes on.
                        self.give_rest(&topic, now);
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
            let turn = self.line_up(&topic, messages.len(), stop.clone());
            let (clock, target) = (self.seams.clock.clone(), self.target.clone());
            self.on_its_way.push(Box::pin(send_group(from.clone(), target, clock, turn, topic, messages)));
        }
        self.settle(from, aside);
    }

    /// The next turn of a topic: behind what is on its way to it.
    fn line_up(&mut self, topic: &Text, messages: usize, stop: watch::Receiver<bool>) -> Turn {
        let (taken, last) = oneshot::channel();
        let Some(queue) = self.busy.get_mut(topic) else {
            self.busy.insert(topic.clone(), Queue { groups: 1, messages, last });
            self.fresh.insert(topic.clone());
            return Turn { before: None, stop, taken };
        };
        queue.groups += 1;
        queue.messages += messages;
        Turn { before: Some(std::mem::replace(&mut queue.last, last)), stop, taken }
    }

    /// Leaves a topic alone for a while, and for longer each time.
    fn give_rest(&mut self, topic: &Text, now: Duration) -> Duration {
        let held = self.held.entry(topic.clone()).or_insert_with(new_backoff);
        // Several groups may fail with one and the same failure.
        if !held.holds(now) {
            held.failed(now);
        }
        held.rest(now)
    }

    /// What is to be done with the messages that one topic answered for.
    fn sort_out(&mut self, group: Group) -> Vec<Settle> {
        let Group { topic, lined_up, messages, results } = group;
        if let Some(queue) = self.busy.get_mut(&topic) {
            queue.groups -= 1;
            queue.messages -= lined_up;
        }
        self.busy.retain(|_, queue| queue.groups > 0);
        self.fresh.remove(&topic);
        let now = self.seams.clock.elapsed();
        match failure(&results) {
            None => {
                self.held.remove(&topic);
            }
            Some(error) => {
                let pause = self.give_rest(&topic, now);
                tracing::warn!(
                    via = %self.detour.via, %topic, %error, ?pause,
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
        settles.collect()
    }

    fn settle(&mut self, from: &Arc<dyn Consumer>, settles: Vec<Settle>) {
        if !settles.is_empty() {
            let (clock, via) = (self.seams.clock.clone(), self.detour.via.clone());
            self.on_its_way.push(Box::pin(settle_all(from.clone(), clock, via, settles)));
        }
    }

    /// Back to where it waited, due after a pause of its target.
    fn hold(&self, mut delivery: Delivery, pause: Duration, error: Option<&Error>) -> Settle {
        // A name of its own: its sender may have sent anew under its id, and neither must replace the other.
        let fence = delivery.receipt.lease().fence;
        let is_in_doubt = wire::is_in_doubt(&delivery.message.headers)
            // The forwarder that had it before may have sent it.
            || delivery.deliveries.is_none_or(|deliveries| deliveries > 1)
            || error.is_some_and(Error::is_doubtful);
        let doubt = if is_in_doubt { wire::DOUBT } else { "" };
        delivery.message.headers.set(wire::HELD, format!("{doubt}{fence}"));
        let note = self.note(Outcome::Released, error.map(|error| error.to_string().into()));
        Settle { delivery, action: Action::Move { to: self.detour.address(), due: Due::After(pause) }, note }
    }

    /// Among the dead letters, visible.
    fn park(&self, mut delivery: Delivery, to: Option<&Address>, error: &Error) -> Settle {
        let text = match to {
            Some(to) => format!("cannot be sent to {to}: {error}"),
            None => error.to_string(),
        };
        let MessageFields { id, kind, attempts, .. } = &*delivery.message;
        let (topic, subscription) = destination(&delivery.message);
        tracing::error!(
            %id, %kind, topic, subscription, attempt = attempts.handled.saturating_add(1), via = %self.detour.via,
            "parked: {text}"
        );
        let now = self.seams.clock.now();
        // A replay returns to the forwarder, which tries the target again.
        stamp(
            &mut delivery.message,
            Rejection::Unroutable,
            &text,
            &self.detour.topic(),
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

/// When a group may be sent, and who hears of it.
struct Turn {
    /// Tells whether the topic took the group before it.
    before: Option<oneshot::Receiver<bool>>,
    /// Who stops begins nothing more: it might be cut off in the middle.
    stop: watch::Receiver<bool>,
    taken: oneshot::Sender<bool>,
}

/// Why a topic cannot take messages now, if that is what these results say.
fn failure(results: &[Result<Sent>]) -> Option<&Error> {
    results.iter().find_map(|result| result.as_ref().err().filter(|error| !error.is_of_the_message()))
}

/// Sends to one topic when its turn comes, and keeps the leases meanwhile: a slow broker must not make the store hand them to
/// another.
async fn send_group(
    from: Arc<dyn Consumer>,
    target: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    turn: Turn,
    topic: Text,
    mut messages: Vec<(Delivery, Envelope)>,
) -> Done {
    let (lined_up, mut is_free) = (messages.len(), true);
    if let Some(before) = turn.before {
        let held = leases(messages.iter().map(|(delivery, _)| delivery));
        is_free = renewing(&*from, &held, &*clock, before).await.unwrap_or(false);
        // Who has been asleep for long finds out here that others have them by now.
        match from.extend(held, None).await {
            Ok(lost) if !*turn.stop.borrow() => {
                messages.retain(|(delivery, _)| !lost.contains(&delivery.receipt.lease()));
            }
            _ => return Done::Sent(Group { topic, lined_up, messages: vec![], results: vec![] }),
        }
    }
    let (deliveries, envelopes): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    let none = |text: String| -> Vec<Result<Sent>> {
        let unsent = || Error::new(ErrorKind::Unavailable, text.clone()).with_doubt(false);
        envelopes.iter().map(|_| Err(unsent())).collect()
    };
    // Opening the producer may take as long as sending.
    let sending = Box::pin(async {
        match target.producer().await {
            _ if !is_free => none("what was due before it could not be sent".into()),
            Ok(producer) => producer.send(&envelopes).await,
            // No producer is never the message's fault: whatever the kind, they wait.
            Err(error) => none(error.to_string()),
        }
    });
    let leases = leases(deliveries.iter());
    let mut results = renewing(&*from, &leases, &*clock, sending).await;
    results.resize_with(envelopes.len(), || Err(unconfirmed()));
    let _ = turn.taken.send(failure(&results).is_none());
    let messages = deliveries.into_iter().zip(envelopes.into_iter().map(|envelope| envelope.to)).collect();
    Done::Sent(Group { topic, lined_up, messages, results })
}

/// Settles in the store, and tries again for as long as the lease surely lasts: what was sent and is not settled will
/// be sent again.
async fn settle_all(
    from: Arc<dyn Consumer>,
    clock: Arc<dyn Clock>,
    via: Text,
    mut settles: Vec<Settle>,
) -> Done {
    let mut backoff = new_backoff();
    while !settles.is_empty() {
        let leases = leases(settles.iter().map(|settle| &settle.delivery));
        let settling = from.settle(std::mem::take(&mut settles));
        let unsettled = renewing(&*from, &leases, &*clock, settling).await;
        let now = clock.elapsed();
        backoff.failed(now);
        let pause = backoff.rest(now);
        for Unsettled { settle, error } in unsettled {
            if error.kind() != ErrorKind::Stale && pause <= LONGEST_SETTLE_PAUSE {
                settles.push(settle);
                continue;
            }
            let MessageFields { id, kind, attempts, .. } = &*settle.delivery.message;
            let (topic, subscription) = destination(&settle.delivery.message);
            tracing::warn!(
                %id, %kind, topic, subscription, attempt = attempts.handled.saturating_add(1), %via, %error,
                "a forwarded message was not settled in the store: it will be sent again"
            );
        }
        if !settles.is_empty() {
            clock.sleep(pause).await;
        }
    }
    Done::Settled
}

fn leases<'a>(of: impl Iterator<Item = &'a Delivery>) -> Vec<LeaseId> {
    of.map(|delivery| delivery.receipt.lease()).collect()
}

/// What `work` comes to; meanwhile, the leases are kept.
async fn renewing<T>(
    from: &dyn Consumer,
    leases: &[LeaseId],
    clock: &dyn Clock,
    mut work: impl Future<Output = T> + Unpin,
) -> T {
    let third = Forwarder::subscription("").lease / 3;
    loop {
        match select(work, clock.sleep(third)).await {
            Either::Left((results, _)) => return results,
            Either::Right((_, still)) => {
                work = still;
                if let Err(error) = from.extend(leases.to_vec(), None).await {
                    tracing::warn!(%error, "could not renew the leases of a slow forward");
                }
            }
        }
    }
}

/// Topic and subscription that a stored message is for, for logs. A topic alone goes to all who subscribed.
fn destination(message: &Message) -> (&str, &str) {
    let text = |name| message.headers.get_text(name).unwrap_or_default();
    (text(wire::TO_TOPIC), text(wire::TO_SUBSCRIPTION))
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
