//! The forwarder: moves due messages from a store to their broker.
//!
//! It is the scheduler of every broker without native delays, the outbox, and the relay between
//! brokers. It is one loop that leases due messages, sends them and settles them. Any number of
//! forwarders share the work of one store, like other consumers.
//!
//! Failures are handled as follows:
//!
//! * The target does not answer, refuses us, or is full: the message waits, without limit, since it
//!   is not its fault. Each topic is sent to by itself: one that fails or hangs holds up only its
//!   own messages, which come due again after a pause that grows up to a minute. A message that may
//!   have been sent all the same is marked as such in its name, so that nobody is told that it is
//!   cancelled.
//! * The target is slow: what comes due for it meanwhile is next, in the order of due times.
//! * The message itself can never be sent (too large, no such target): it is parked among the dead
//!   letters of its [topic](crate::forward_topic), with the reason `unroutable`, where people see
//!   it and can replay it.
//! * Sent, but the settlement failed: it is sent again after the lease. That duplicate is explained
//!   by the fault.

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

/// Maximum number of messages per receive.
const BATCH: usize = 1000;
/// Maximum time of a receive. The store wakes it when a message is due.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// Interval at which an idle loop shows that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Pause after the first failure. It doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Maximum pause before settlements in the store are retried. All pauses together are half a lease.
const LONGEST_SETTLE_PAUSE: Duration = Duration::from_secs(8);
/// Maximum time that a stopping forwarder waits for sends and settlements.
const LAST_PATIENCE: Duration = Duration::from_secs(8);
/// Time after which a topic that has not answered does not delay the others any more.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of messages in flight to one topic. Further due messages go back to the store.
const MOST_ON_ITS_WAY: usize = 2 * BATCH;

/// Sends due messages from a store to one broker.
pub struct Forwarder {
    detour: Detour,
    target: Arc<dyn Transport>,
    seams: Seams,
    /// Topics that failed recently, each with its pause.
    held: BTreeMap<Text, Backoff>,
    /// Topics with sends in flight.
    busy: BTreeMap<Text, Queue>,
    /// Busy topics that were sent to last and that the loop waits for.
    fresh: BTreeSet<Text>,
    /// Sends and settlements in flight. They run independently, so the leases of all others are
    /// renewed while one hangs.
    on_its_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// When the loop last completed a round.
    tick: Arc<AtomicI64>,
}

/// Sends in flight to one topic. They run one after the other, so that the messages keep their
/// order.
struct Queue {
    groups: usize,
    messages: usize,
    /// Receives whether the topic accepted the last group.
    last: oneshot::Receiver<bool>,
}

/// Messages of one batch for one topic, and their results.
struct Group {
    topic: Text,
    /// Number of messages when the group was queued. Some may have been lost since.
    lined_up: usize,
    messages: Vec<(Delivery, Address)>,
    results: Vec<Result<Sent>>,
}

/// A completed send or settlement.
enum Done {
    /// A topic has answered.
    Sent(Group),
    /// The store has answered.
    Settled,
}

/// What the loop waits for.
enum Event {
    Done(Done),
    Received(Result<Vec<Delivery>>),
}

impl Forwarder {
    /// Creates a forwarder from the store of `detour` to `target`.
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

    /// Returns the subscription in the store that holds messages for `via`.
    pub fn subscription(via: impl Into<Text>) -> Subscription {
        let via = via.into();
        Subscription::new(forward_topic(&via), via)
    }

    /// Creates the subscription in the store. Before that, no message for the broker can be stored.
    pub async fn provision(detour: &Detour, on_missing: OnMissing) -> Result<()> {
        detour.store.provision(&[], &[Self::subscription(detour.via.clone())], on_missing).await
    }

    /// Forwards messages until `stop`. Returns an error if it has to be restarted.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let from = self.detour.store.consumer(Self::subscription(self.detour.via.clone())).await?;
        let result = loop {
            self.wait_for_the_fresh(&from).await;
            self.tick.store(self.seams.clock.now().0, Ordering::Relaxed);
            // A stop cancels only the wait, never a settlement, which would cause a duplicate.
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

    /// Waits up to `PATIENCE` for the topics that were sent to last. The answer of a slower topic
    /// is processed when it arrives, and does not delay the others.
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

    /// Waits for sends and settlements in flight, to avoid duplicates after a stop.
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

    /// Sends a batch, each topic separately.
    async fn send(&mut self, from: &Arc<dyn Consumer>, stop: &watch::Receiver<bool>, batch: Vec<Delivery>) {
        let now = self.seams.clock.elapsed();
        let mut groups: BTreeMap<Text, Vec<(Delivery, Envelope)>> = BTreeMap::new();
        let mut aside = vec![];
        for delivery in batch {
            if let Some(problem) = delivery.problem.clone() {
                // The message is unreadable, so the target must not receive it as a valid one.
                aside.push(self.park(delivery, None, &Error::new(ErrorKind::Invalid, &*problem)));
                continue;
            }
            match unwrap(&delivery) {
                Some(envelope) => {
                    let topic = envelope.to.topic_name().clone();
                    let on_its_way = self.busy.get(&topic).map_or(0, |queue| queue.messages);
                    if on_its_way >= MOST_ON_ITS_WAY {
                        // The topic has not answered for a while: retry later, with a growing
                        // pause.
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
                    let text =
                        format!("the header `{}` is missing, so the destination is unknown", wire::TO_TOPIC);
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

    /// Returns the next turn of a topic, after all groups that are queued for it.
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

    /// Starts a pause for a topic, which grows with each failure.
    fn give_rest(&mut self, topic: &Text, now: Duration) -> Duration {
        let held = self.held.entry(topic.clone()).or_insert_with(new_backoff);
        // Several groups may fail because of the same failure.
        if !held.holds(now) {
            held.failed(now);
        }
        held.rest(now)
    }

    /// Returns the settlements for the messages of a group with results.
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
                    "forward target unavailable; holding its messages"
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

    /// Returns the message to the store, due after the pause of its target.
    fn hold(&self, mut delivery: Delivery, pause: Duration, error: Option<&Error>) -> Settle {
        // A separate name: the sender may have sent this id again, and neither message may replace
        // the other.
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

    /// Moves the message to the dead letters.
    fn park(&self, mut delivery: Delivery, to: Option<&Address>, error: &Error) -> Settle {
        let text = match to {
            Some(to) => format!("cannot be sent to {to}: {error}"),
            None => error.to_string(),
        };
        let MessageFields { id, kind, attempts, .. } = &*delivery.message;
        let (topic, subscription) = destination(&delivery.message);
        tracing::error!(
            %id, %kind, topic, subscription, attempt = attempts.handled.saturating_add(1), via = %self.detour.via,
            error = text, "parked: the message cannot be forwarded"
        );
        let now = self.seams.clock.now();
        // A replay returns the message to the forwarder, which sends it to the target again.
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

/// When a group may be sent, and who is notified.
struct Turn {
    /// Receives whether the topic accepted the group before it.
    before: Option<oneshot::Receiver<bool>>,
    /// A stopping forwarder starts no send, because it might be interrupted.
    stop: watch::Receiver<bool>,
    taken: oneshot::Sender<bool>,
}

/// Returns the error because of which a topic cannot accept messages now, if there is one.
fn failure(results: &[Result<Sent>]) -> Option<&Error> {
    results.iter().find_map(|result| result.as_ref().err().filter(|error| !error.is_of_the_message()))
}

/// Sends to one topic when its turn comes. Meanwhile, it renews the leases, so that the store does
/// not redeliver messages because of a slow broker.
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
        // After a long suspension of the process, this call finds out which leases were lost.
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
            _ if !is_free => none("an earlier message for this topic could not be sent".into()),
            Ok(producer) => producer.send(&envelopes).await,
            // A missing producer is never the message's fault, so the messages stay, whatever the
            // kind of the error.
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

/// Settles in the store, and retries for as long as the lease certainly lasts. A message that was
/// sent and is not settled is sent again.
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
                "settlement in the store failed; the message will be forwarded again"
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

/// Returns the result of `work`, and renews the leases meanwhile.
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
                    tracing::warn!(%error, "lease renewal failed during a slow forward");
                }
            }
        }
    }
}

/// Returns topic and subscription of the destination, for logs. A topic alone addresses all of its
/// subscriptions.
fn destination(message: &Message) -> (&str, &str) {
    let text = |name| message.headers.get_text(name).unwrap_or_default();
    (text(wire::TO_TOPIC), text(wire::TO_SUBSCRIPTION))
}

/// Returns the envelope as it was before it was stored.
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
