//! A performer: one consumer and one loop.
//!
//! ```text
//!            receive            start               verdict              decide
//!  broker ───────────▶ waiting ───────▶ running ───────────▶ outcome ─────────────┬─▶ lanes ──▶ broker
//!                         ▲                                                       │     ▲
//!                         └── key busy                              released ◀────┘     │
//!                                                                       └─ after a pause┘
//! ```
//!
//! * Every received delivery has a slot until it is settled. The renewal and the monitor read the
//!   slots.
//! * A message runs only while its lease is known to be valid. A message with a lost lease is
//!   dropped without a run.
//! * Only the rules settle messages. A failed settlement is retried, and never replaced by an ack.
//! * Messages that are set aside (released, or behind a failing channel) take no capacity from the
//!   others, up to a limit. Beyond it, nothing more is received.

mod ending;

use super::{
    Control, PumpShared,
    counters::Counts,
    executor::Executor,
    lanes::{Lanes, Settled},
    limits::Unacceptable,
    run::{Finished, Held, Run},
    slots::{Slot, Slots, Started},
};
use crate::{
    Begun, Context, Place,
    backoff::Backoff,
    gaps::Gaps,
    inside::Runs,
    observe::{Decided, Ran, watch},
    rules::{Decision, Rules, Verdict, decide},
    spawn::yield_now,
};
use bytes::Bytes;
use dwell_core::{
    Action, BoxFuture, Consumer, Delivery, Due, Error, ErrorKind, Lease, Outcome, Receive, Result, Settle,
    Text, Timestamp, format_duration,
};
use futures_util::{StreamExt, poll, stream::FuturesUnordered};
use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};
use tokio::{sync::watch, task::unconstrained};

/// Maximum time of a receive. The broker wakes it when a message is due.
const WAIT: Duration = Duration::from_secs(24 * 3600);
/// Maximum pause between failing receives.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of messages that are set aside, before receiving stops.
const MOST_ASIDE: usize = 1000;
/// Batch size from which the next receive starts before the handlers. There are probably more
/// messages, and starting the handlers takes a while.
const MANY: usize = 500;

/// Why a performer ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It was stopped.
    Stopped,
    /// Too many messages were unacceptable.
    LimitExceeded,
    /// The pipeline cannot work.
    Misconfigured(Text),
    /// The consumer failed permanently, and has to be replaced.
    Failed(Error),
}

pub(super) struct Performer {
    pump: Arc<PumpShared>,
    slots: Arc<Slots>,
    consumer: Arc<dyn Consumer>,
    executor: Executor,
    rules: Rules,
    place: Arc<Place>,
    control: watch::Receiver<Control>,
    receiving: Option<BoxFuture<'static, Result<Vec<Delivery>>>>,
    receive_backoff: Backoff,
    waiting: VecDeque<Held>,
    /// Running keys, each with the messages that wait for it.
    keys: BTreeMap<Bytes, VecDeque<Held>>,
    waiting_for_keys: usize,
    runs: FuturesUnordered<Run>,
    lanes: Lanes,
    /// Released messages, with the time when they are given back.
    released: VecDeque<(Duration, usize, Settle)>,
    unacceptable: Unacceptable,
    next_start: Option<Duration>,
    held: usize,
    counts: Counts,
    ending: Option<Ended>,
    draining_since: Option<Duration>,
    /// Whether the sender of `control` was dropped.
    orphaned: bool,
}

impl Performer {
    pub(super) fn new(
        pump: Arc<PumpShared>,
        seat: usize,
        consumer: Arc<dyn Consumer>,
        worker: Text,
        control: watch::Receiver<Control>,
    ) -> Self {
        let seat = &pump.performers[seat];
        let settings = &pump.settings;
        let rules = Rules::new(settings, worker.clone());
        let gaps = Arc::new(Gaps {
            subscription: rules.subscription.clone(),
            capabilities: pump.capabilities,
            transport: pump.transport.clone(),
            consumer: consumer.clone(),
            delay: pump.delay.clone(),
        });
        let place = Arc::new(Place {
            topic: rules.subscription.topic.clone(),
            subscription: rules.subscription.name.clone(),
            worker: worker.clone(),
        });
        let clock = pump.seams.clock.clone();
        let executor = Executor::new(
            &pump.work,
            clock,
            settings.concurrency,
            &worker,
            seat.abandoned.clone(),
            &pump.runs,
        );
        Self {
            slots: seat.slots.clone(),
            executor,
            rules,
            place,
            control,
            receiving: None,
            receive_backoff: Backoff::new(settings.channel_failure_delay, LONGEST_PAUSE),
            waiting: VecDeque::new(),
            keys: BTreeMap::new(),
            waiting_for_keys: 0,
            runs: FuturesUnordered::new(),
            lanes: Lanes::new(gaps, settings.channel_failure_delay),
            released: VecDeque::new(),
            unacceptable: Unacceptable::new(
                settings.unacceptable_message_limit,
                settings.unacceptable_message_window,
            ),
            next_start: None,
            held: 0,
            counts: Counts::default(),
            ending: None,
            draining_since: None,
            orphaned: false,
            consumer,
            pump,
        }
    }

    /// Runs until the performer is stopped or cannot continue. At the end, it holds no message and
    /// the consumer is closed.
    pub(super) async fn run(mut self) -> Ended {
        loop {
            let control = *self.control.borrow_and_update();
            if control == Control::StopNow {
                return Ended::Stopped;
            }
            if (control == Control::Drain || self.orphaned) && self.ending.is_none() {
                self.ending = Some(Ended::Stopped);
            }
            if self.ending.is_some() {
                self.drain();
            } else if control == Control::Pause {
                self.give_back_waiting();
                self.next_start = None;
            }
            if control == Control::Run && self.ending.is_none() && self.waiting.len() >= MANY {
                self.receive_ahead().await;
            }
            if control != Control::Pause || self.ending.is_some() {
                poll_fn(|task| {
                    self.start(task);
                    Poll::Ready(())
                })
                .await;
            }
            if self.has_to_drain() {
                continue;
            }
            self.give_back_released();
            let settled = self.lanes.flush(self.elapsed()).await;
            self.take_in(settled);
            self.pump.counters.add(&std::mem::take(&mut self.counts));
            if self.ending.is_some() && (self.is_drained() || self.drain_time_is_over()) {
                return self.leave().await;
            }
            if control == Control::Run && self.ending.is_none() {
                self.receive();
            } else {
                self.receiving = None;
            }
            self.wait().await;
        }
    }

    fn elapsed(&self) -> Duration {
        self.pump.seams.clock.elapsed()
    }

    /// Waits for an event, and processes it.
    async fn wait(&mut self) {
        let timer = self.wake_in().map(|pause| self.pump.seams.clock.sleep(pause));
        let timer = async {
            match timer {
                Some(timer) => timer.await,
                None => std::future::pending().await,
            }
        };
        let receiving = async {
            match &mut self.receiving {
                Some(receiving) => receiving.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = self.control.changed(), if !self.orphaned => self.orphaned = changed.is_err(),
            Some(finished) = next_run(&self.pump.runs, &mut self.runs), if !self.runs.is_empty() => {
                self.finished_and_more(finished).await;
            }
            // Handlers may have spent the cooperative budget of this task. A handler that is always
            // ready must not block settlements and receiving.
            batch = unconstrained(self.lanes.next()) => {
                let settled = self.lanes.settled(batch, self.pump.seams.clock.elapsed());
                self.take_in(settled);
            }
            received = unconstrained(receiving) => {
                self.receiving = None;
                self.received(received);
                // Yields, because a broker that always has messages and handlers that finish
                // immediately would starve other tasks.
                yield_now().await;
            }
            () = timer => {}
            () = unconstrained(self.executor.more_room()) => {}
        }
    }

    /// Returns the time until the next timer that this performer has to set itself.
    fn wake_in(&self) -> Option<Duration> {
        let now = self.elapsed();
        let released = self.released.front().map(|(at, ..)| at.saturating_sub(now));
        let start = self.next_start.filter(|_| !self.waiting.is_empty()).map(|at| at.saturating_sub(now));
        let drain = self.drain_ends().map(|end| end.saturating_sub(now));
        let receive = (self.receiving.is_none() && self.receive_backoff.holds(now))
            .then(|| self.receive_backoff.rest(now));
        [released, start, drain, receive, self.lanes.wake_in(now)].into_iter().flatten().min()
    }

    // ---- receiving ----

    /// Starts a receive if there is capacity.
    fn receive(&mut self) {
        let settings = &self.pump.settings;
        let now = self.elapsed();
        // Messages that wait for their key are set aside, too, so that one slow key does not block
        // all others.
        let waiting = self.waiting.len();
        let aside = self.released.len() + self.waiting_for_keys + self.lanes.aside();
        let most_held = settings.batch.saturating_add(settings.concurrency).saturating_mul(2);
        if self.receiving.is_some()
            || self.receive_backoff.holds(now)
            || waiting > settings.batch / 2
            || aside >= MOST_ASIDE
            || self.held.saturating_sub(aside) >= most_held
        {
            return;
        }
        let (consumer, max) = (self.consumer.clone(), settings.batch - waiting.min(settings.batch - 1));
        let receive = Receive { max, wait: WAIT, lease: None, worker: Some(self.rules.worker.clone()) };
        self.receiving = Some(Box::pin(async move { consumer.receive_with(receive).await }));
    }

    /// Starts the next receive before the handlers, so that the broker receives this request before
    /// their settlements.
    async fn receive_ahead(&mut self) {
        if self.receiving.is_some() {
            return;
        }
        self.receive();
        let Some(receiving) = &mut self.receiving else { return };
        if let Poll::Ready(received) = poll!(receiving) {
            self.receiving = None;
            self.received(received);
        }
    }

    fn received(&mut self, received: Result<Vec<Delivery>>) {
        let now = self.elapsed();
        let batch = match received {
            Ok(batch) => batch,
            Err(error) => return self.receive_failed(error, now),
        };
        self.receive_backoff.succeeded();
        self.pump.set_error(None);
        if batch.is_empty() {
            return;
        }
        self.counts.received += batch.len() as u64;
        self.held += batch.len();
        let mut table = self.slots.lock();
        for delivery in batch {
            let slot = table.insert(Slot::of(&delivery, now));
            self.waiting.push_back(Held { slot, delivery });
        }
        drop(table);
        self.slots.filled();
    }

    fn receive_failed(&mut self, error: Error, now: Duration) {
        self.counts.receives_failed += 1;
        if error.kind() == ErrorKind::Closed {
            if self.ending.is_none() {
                self.ending = Some(Ended::Failed(error));
            }
            return;
        }
        self.receive_backoff.failed(now);
        let (topic, subscription) = self.place();
        tracing::warn!(topic, subscription, %error, pause = ?self.receive_backoff.rest(now), "receive failed; retrying");
        self.pump.set_error(Some(error.to_string()));
    }

    // ---- running ----

    /// Starts handlers up to the concurrency, and processes those that finish immediately.
    fn start(&mut self, task: &mut TaskContext<'_>) {
        self.next_start = None;
        while !self.has_to_drain()
            && self.runs.len() < self.pump.settings.concurrency
            && self.executor.room() > 0
        {
            let Some(held) = self.waiting.pop_front() else { return };
            if let Some(problem) = held.delivery.problem.clone() {
                self.decide(Finished {
                    held,
                    ran: None,
                    verdict: Verdict::Invalid(problem),
                    timed_out: false,
                });
                continue;
            }
            if let Some(verdict) = self.rules.before_run(&held.delivery, self.pump.quarantine) {
                self.decide(Finished { held, ran: None, verdict, timed_out: false });
                continue;
            }
            let Some(held) = self.claim_key(held) else { continue };
            let now = self.elapsed();
            if let Some(pause) = self.pump.rate.take(now) {
                self.free_key_of(&held);
                self.waiting.push_front(held);
                self.next_start = Some(now + pause);
                return;
            }
            let timeout = self.pump.settings.handler_timeout(&held.delivery.message.kind);
            let started = Started { at: now, timeout };
            if self.set_started(&held, started) {
                self.start_one(held, started, task);
            } else {
                self.free_key_of(&held);
                self.counts.lost += 1;
                self.forget(held.slot);
            }
        }
    }

    /// Marks a message as running. Returns `false` if its lease is lost, or may have expired while
    /// the process was suspended.
    fn set_started(&self, held: &Held, started: Started) -> bool {
        let mut table = self.slots.lock();
        let Some(slot) = table.get_mut(held.slot) else { return false };
        let timed = matches!(self.pump.capabilities.lease, Lease::Timed { .. });
        let lapsed = timed && started.at.saturating_sub(slot.renewed) >= self.pump.settings.lease;
        slot.started = Some(started);
        !(slot.lost || lapsed)
    }

    fn start_one(&mut self, held: Held, started: Started, task: &mut TaskContext<'_>) {
        let delivery = &held.delivery;
        let context = Context {
            place: self.place.clone(),
            lease: delivery.receipt.lease(),
            deliveries: delivery.deliveries,
            due: delivery.due,
        };
        let observed = self.pump.observer.is_some();
        let late = delivery.due.filter(|_| observed).map(|due| self.pump.seams.clock.now().since(due));
        let slot = || Slot { started: Some(started), ..Slot::of(delivery, started.at) };
        let message = delivery.message.clone();
        let Started { at: started, timeout } = started;
        let inside = self.pump.runs.enter();
        let begun = self.executor.begin(message, context, slot, task);
        drop(inside);
        match begun {
            Begun::Done(verdict) => {
                self.finished(Finished { held, ran: Some((started, late)), verdict, timed_out: false });
            }
            Begun::Waits(handler) => {
                let timer = self.pump.seams.clock.sleep(timeout);
                self.runs.push(Run {
                    held: Some(held),
                    handler: Some(handler),
                    started,
                    late,
                    timeout,
                    timer,
                });
            }
        }
    }

    async fn finished_and_more(&mut self, finished: Finished) {
        self.finished(finished);
        while let Poll::Ready(Some(finished)) = poll!(next_run(&self.pump.runs, &mut self.runs)) {
            self.finished(finished);
        }
    }

    fn finished(&mut self, mut finished: Finished) {
        self.free_key_of(&finished.held);
        if self.slots.is_lost(finished.held.slot) {
            // Another worker has the message, so this outcome is ignored.
            self.counts.lost += 1;
            return self.forget(finished.held.slot);
        }
        if let Verdict::Ack { result: Some(_) } = finished.verdict
            && !self.pump.capabilities.ledger
        {
            let text = "the handler returned a result, but this transport has no ledger to store it";
            finished.verdict = Verdict::Misconfigured(text.into());
        }
        self.decide(finished);
    }

    // ---- order per key ----

    /// Claims the key of a message, or queues the message behind those that wait for the key.
    fn claim_key(&mut self, held: Held) -> Option<Held> {
        let settings = &self.pump.settings;
        if !settings.ordered || settings.concurrency == 1 {
            return Some(held);
        }
        let Some(key) = &held.delivery.message.key else { return Some(held) };
        if let Some(waiting) = self.keys.get_mut(key) {
            waiting.push_back(held);
            self.waiting_for_keys += 1;
            return None;
        }
        self.keys.insert(key.clone(), VecDeque::new());
        Some(held)
    }

    fn free_key_of(&mut self, held: &Held) {
        let Some(key) = &held.delivery.message.key else { return };
        let Some(waiting) = self.keys.remove(key) else { return };
        self.waiting_for_keys -= waiting.len();
        // In front and in order, because they arrived before messages that were received later.
        waiting.into_iter().rev().for_each(|held| self.waiting.push_front(held));
    }

    // ---- settling ----

    fn decide(&mut self, finished: Finished) {
        let Finished { held: Held { slot, delivery }, ran, verdict, timed_out } = finished;
        let (clock, random) = (&self.pump.seams.clock, &self.pump.seams.random);
        let misconfigured = match &verdict {
            Verdict::Misconfigured(error) => Some(error.clone()),
            _ => None,
        };
        let attempt = delivery.message.attempts.handled.saturating_add(1);
        // Successes, which are most outcomes, need neither the time nor a random number.
        let succeeded = matches!(verdict, Verdict::Ack { .. });
        let (now, jitter) = if succeeded { (Timestamp(0), 0.0) } else { (clock.now(), random.symmetric()) };
        let mut decision = decide(delivery, verdict, &self.rules, now, jitter);
        if let Some(error) = self.impossible(&decision.settle.action) {
            decision = decide(decision.settle.delivery, Verdict::Reject(error), &self.rules, now, jitter);
        }
        self.counts.timed_out += u64::from(timed_out);
        self.counts.discarded += u64::from(decision.discarded);
        self.counts.add(decision.settle.note.outcome);
        self.log(&decision, attempt);
        self.observe(&decision, ran);
        if decision.unacceptable && self.unacceptable.count(self.elapsed()) && self.ending.is_none() {
            self.ending = Some(Ended::LimitExceeded);
        }
        match (misconfigured, &decision.settle.action) {
            (Some(error), _) => {
                self.lanes.push(slot, decision.settle);
                if self.ending.is_none() {
                    self.ending = Some(Ended::Misconfigured(error));
                }
            }
            (None, Action::Release) => {
                let at = self.elapsed().saturating_add(self.pump.settings.release_delay);
                self.set_finished(&[slot]);
                self.released.push_back((at, slot, decision.settle));
            }
            (None, _) => self.lanes.push(slot, decision.settle),
        }
    }

    /// Returns why an action can never be carried out: its delay is not supported. Retrying it
    /// would never succeed.
    fn impossible(&self, action: &Action) -> Option<Text> {
        let Action::Move { due, .. } = action else { return None };
        self.pump.delay.route(*due).err().map(|error| error.to_string().into())
    }

    /// Marks the handlers of these slots as finished, whatever their outcome.
    fn set_finished(&self, slots: &[usize]) {
        let mut table = self.slots.lock();
        for slot in slots {
            if let Some(slot) = table.get_mut(*slot) {
                slot.started = None;
            }
        }
    }

    /// Returns topic and name of the subscription, for logs.
    fn place(&self) -> (&str, &str) {
        (&self.rules.subscription.topic, &self.rules.subscription.name)
    }

    /// Logs the outcome of a message, without its payload. `attempt` is the number of this run, or
    /// of the run that did not happen.
    fn log(&self, decision: &Decision, attempt: u32) {
        let Settle { delivery, note, action } = &decision.settle;
        let message = &delivery.message;
        let error = note.error.as_deref().unwrap_or_default();
        let (topic, subscription) = self.place();
        if decision.dead {
            let to = match action {
                Action::Move { to, .. } => to.to_string(),
                _ => "nowhere: discarded".into(),
            };
            tracing::error!(
                id = %message.id, kind = %message.kind, topic, subscription, attempt, outcome = ?note.outcome, %to,
                error, "dead-lettered"
            );
        } else if let (Outcome::Failed, Action::Move { due: Due::After(delay), .. }) = (note.outcome, action)
        {
            tracing::warn!(
                id = %message.id, kind = %message.kind, topic, subscription, attempt,
                again_in = format_duration(*delay), error, "failed"
            );
        } else if !matches!(note.outcome, Outcome::Handled) {
            tracing::debug!(
                id = %message.id, kind = %message.kind, topic, subscription, attempt, outcome = ?note.outcome, error,
                "not handled"
            );
        }
    }

    /// Logs the messages whose settlement failed.
    fn log_unsettled(&self, slots: &[usize], error: &Error) {
        let (topic, subscription) = self.place();
        let mut table = self.slots.lock();
        for slot in slots {
            let Some(Slot { message, .. }) = table.get_mut(*slot) else { continue };
            tracing::warn!(
                id = %message.id, kind = %message.kind, topic, subscription,
                attempt = message.attempts.handled.saturating_add(1), %error, "settlement failed; retrying"
            );
        }
    }

    fn observe(&self, decision: &Decision, ran: Option<(Duration, Option<Duration>)>) {
        let Some(observer) = &self.pump.observer else { return };
        let decided = Decided {
            topic: &self.rules.subscription.topic,
            subscription: &self.rules.subscription.name,
            settle: &decision.settle,
            dead: decision.dead,
            discarded: decision.discarded,
            ran: ran.map(|(started, late)| Ran { late, took: self.elapsed().saturating_sub(started) }),
        };
        watch(|| observer.decided(&decided));
    }

    fn give_back_released(&mut self) {
        let now = self.elapsed();
        while self.released.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, slot, settle) = self.released.pop_front().expect("the queue has a first entry");
            self.lanes.push(slot, settle);
        }
    }

    fn take_in(&mut self, settled: Settled) {
        if let Some(error) = &settled.error {
            self.counts.settlements_failed += settled.failed.len() as u64;
            self.log_unsettled(&settled.failed, error);
            self.set_finished(&settled.failed);
        }
        self.counts.lost += settled.lost;
        self.held -= settled.slots.len();
        if settled.slots.is_empty() {
            return;
        }
        let mut table = self.slots.lock();
        settled.slots.into_iter().for_each(|slot| table.remove(slot));
    }

    fn forget(&mut self, slot: usize) {
        self.held -= 1;
        self.slots.lock().remove(slot);
    }
}

/// Returns the next finished run.
fn next_run<'a>(
    of: &'a Runs,
    runs: &'a mut FuturesUnordered<Run>,
) -> impl Future<Output = Option<Finished>> + 'a {
    poll_fn(move |task| {
        let _inside = of.enter();
        runs.poll_next_unpin(task)
    })
}
