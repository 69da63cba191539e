//! The consumer of a memory transport.

use super::{
    flow::CHUNK,
    queue::Signal,
    receivers::Receivers,
    settle::Released,
    shared::{Shared, closed},
    state::{QueueAt, State},
};
use crate::spawn::yield_now;
use dwell_core::{
    BoxFuture, Consumer, Delivery, Error, ErrorKind, LeaseId, Receipt, Receive, Result, Settle, Subscription,
    Text, Timestamp, Unsettled,
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

/// Maximum number of deliveries per `receive`.
const MOST: usize = 10 * CHUNK;

/// A queue with this many ready messages promotes no more due messages than it delivers.
const BACKLOG: usize = 4 * CHUNK;

/// Interval at which a waiting receiver checks its queue again without a signal.
const SAFETY_TICK: Duration = Duration::from_secs(1);

pub(super) struct MemoryConsumer {
    shared: Arc<Shared>,
    of: Subscription,
    queue: QueueAt,
    receivers: Arc<Receivers>,
    /// Unique number of this consumer.
    number: u64,
    is_closed: AtomicBool,
}

/// Result of a look at the queue.
enum Look {
    Found(Vec<Delivery>),
    /// More work remains than is allowed under one hold of the lock.
    Again,
    /// No message is ready. Times of the next due message and the next expiring lease.
    Nothing {
        due: Option<Timestamp>,
        expiry: Option<Duration>,
    },
}

/// A request of a receiver.
struct Ask {
    queue: QueueAt,
    consumer: u64,
    worker: Option<Text>,
    max: usize,
    lease: Duration,
}

impl MemoryConsumer {
    pub(super) fn open(shared: Arc<Shared>, of: Subscription) -> Result<Self> {
        let (queue, number, receivers) = shared.open(|state| {
            let topic = state.topic(&of.topic)?;
            let queue = state.queue(topic, &of.name)?;
            let found = &state.queues[queue.0];
            if found.name != of.name {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "the messages that `{}` kept without a subscription were adopted by its subscription `{}`: consume from that one",
                        of.topic, found.name
                    ),
                ));
            }
            let receivers = found.receivers.clone();
            Ok((queue, state.next(), receivers))
        })??;
        Ok(Self { shared, of, queue, receivers, number, is_closed: AtomicBool::new(false) })
    }

    async fn wait_for_deliveries(&self, receive: Receive) -> Result<Vec<Delivery>> {
        let Receive { max, wait, lease, worker } = receive;
        let lease = lease.unwrap_or(self.of.lease);
        let ask = Ask { queue: self.queue, consumer: self.number, worker, max: max.min(MOST), lease };
        // Most requests find messages immediately and need nothing that follows.
        match self.look(&ask)? {
            Look::Found(deliveries) => return Ok(deliveries),
            Look::Nothing { .. } if wait.is_zero() => return Ok(Vec::new()),
            Look::Again | Look::Nothing { .. } => {}
        }
        let clock = &self.shared.seams.clock;
        let deadline = clock.elapsed().saturating_add(wait);
        loop {
            // Created before the look, so that a message after the look causes a signal.
            let wait = self.receivers.wait();
            let mut told = pin!(wait.told());
            let (due, expiry) = match self.look(&ask)? {
                Look::Found(deliveries) => return Ok(deliveries),
                Look::Again => {
                    yield_now().await;
                    continue;
                }
                Look::Nothing { due, expiry } => (due, expiry),
            };
            let elapsed = clock.elapsed();
            if elapsed >= deadline {
                return Ok(Vec::new());
            }
            let until = expiry.map_or(deadline, |expiry| expiry.min(deadline));
            let mut timers = [
                Some(clock.sleep(until.saturating_sub(elapsed))),
                due.map(|due| clock.sleep_until(due)),
                Some(clock.tick(SAFETY_TICK)),
            ];
            poll_fn(|cx| {
                let is_told = told.as_mut().poll(cx).is_ready();
                let mut timers = timers.iter_mut().flatten();
                if is_told || timers.any(|timer| timer.as_mut().poll(cx).is_ready()) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
        }
    }

    fn look(&self, ask: &Ask) -> Result<Look> {
        let (now, elapsed) = (self.shared.now(), self.shared.elapsed());
        self.shared.with(|state| {
            if state.is_closed {
                return Err(closed());
            }
            if self.is_closed.load(Ordering::SeqCst) {
                let name = self.of.address();
                let text = format!("this consumer of `{name}` is closed: open another one");
                return Err(Error::new(ErrorKind::Closed, text));
            }
            Ok(state.look(ask, now, elapsed))
        })
    }
}

impl State {
    /// Returns ready messages, after promoting due messages and expired leases.
    fn look(&mut self, ask: &Ask, now: Timestamp, elapsed: Duration) -> Look {
        let at = ask.queue;
        let topic = self.queues[at.0].topic;
        let adopted = self.queues[at.0].adopted;
        let backlog = self.queues[at.0].ready() >= BACKLOG;
        let limit = if backlog { ask.max.clamp(1, CHUNK) } else { CHUNK };
        let is_more_due = self.promote(topic, now, limit);
        for queue in adopted.into_iter().chain([at]) {
            let expired = self.queues[queue.0].leases.take_expired(elapsed);
            self.give_back(queue, expired);
        }

        let mut steps = CHUNK;
        let deliveries = self.hand_out(ask, now, elapsed, &mut steps);
        if !deliveries.is_empty() {
            return Look::Found(deliveries);
        }
        if steps == 0 {
            // This receiver may not return, so another one has to handle the rest.
            self.signal(at, Signal::One);
        }
        if ask.max > 0 && (is_more_due || steps == 0) {
            return Look::Again;
        }
        let of = &mut self.topics[topic.0];
        of.told = of.waiting.next_due();
        let due = of.told;
        let leases =
            adopted.into_iter().chain([at]).filter_map(|queue| self.queues[queue.0].leases.earliest());
        Look::Nothing { due, expiry: leases.min() }
    }

    fn hand_out(&mut self, ask: &Ask, now: Timestamp, elapsed: Duration, steps: &mut usize) -> Vec<Delivery> {
        let until = elapsed.saturating_add(ask.lease);
        let mut deliveries = Vec::with_capacity(ask.max.min(self.queues[ask.queue.0].ready()));
        while deliveries.len() < ask.max {
            let fence = self.next();
            let queue = &mut self.queues[ask.queue.0];
            let Some(mut item) = queue.pop(ask.consumer, steps) else { break };
            item.deliveries = item.deliveries.saturating_add(1);
            item.updated_at = now;
            let message = item.spare.take().unwrap_or_else(|| item.message.clone());
            let (due, count, serial) = (item.due, item.deliveries, item.serial);
            let position = queue.leases.put(fence, until, ask.consumer, ask.worker.clone(), item);
            deliveries.push(Delivery {
                message,
                deliveries: Some(count),
                due: Some(due),
                problem: None,
                receipt: Receipt::new(position, fence).with_identity(serial),
            });
        }
        self.done += deliveries.len();
        if !deliveries.is_empty() {
            self.expect_expiry(ask.queue, until);
            if self.queues[ask.queue.0].has_ready() {
                self.signal(ask.queue, Signal::One);
            }
        }
        deliveries
    }

    /// Records when a lease of this queue expires. Wakes the receivers if their timers are too
    /// late.
    fn expect_expiry(&mut self, at: QueueAt, until: Duration) {
        if self.queues[at.0].leases.expect(until) {
            self.signal(self.adopter(at), Signal::All);
        }
    }
}

impl Consumer for MemoryConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.wait_for_deliveries(receive))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            let now = self.shared.moment();
            let mut failed = Vec::new();
            // Dropped only after the lock is released, like the batch.
            let _gone = self.shared.with(|state| {
                let mut released = Released::default();
                for (index, settle) in batch.iter().enumerate() {
                    let result = match state.is_closed {
                        true => Err(closed()),
                        false => state.settle(self.queue, settle, now, &mut released),
                    };
                    failed.extend(result.err().map(|error| (index, error)));
                }
                state.put_back(self.queue, released);
                state.finished.take_gone()
            });
            // The batch is dropped here, because freeing its messages takes time.
            if failed.is_empty() {
                return Vec::new();
            }
            let mut batch: Vec<_> = batch.into_iter().map(Some).collect();
            let failed = failed.into_iter();
            failed.filter_map(|(at, error)| Some(Unsettled { settle: batch[at].take()?, error })).collect()
        })
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(async move {
            let until = self.shared.elapsed().saturating_add(by.unwrap_or(self.of.lease));
            self.shared.open(|state| {
                let mut lost = leases;
                let before = lost.len();
                lost.retain(|lease| match state.queues[self.queue.0].leases.get_mut(*lease) {
                    Some(lease) => {
                        lease.until = until;
                        false
                    }
                    None => true,
                });
                if lost.len() < before {
                    state.expect_expiry(self.queue, until);
                }
                lost
            })
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let now = self.shared.now();
            self.shared.with(|state| {
                if !self.is_closed.swap(true, Ordering::SeqCst) && !state.is_closed {
                    state.give_back_from(self.queue, self.number, now);
                    state.signal(self.queue, Signal::All);
                }
            });
            Ok(())
        })
    }
}
