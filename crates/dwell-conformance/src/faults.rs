//! A transport with switchable faults that counts the calls it receives.

use dwell_core::{
    Address, Answer, BoxFuture, Capabilities, Change, Changed, Consumer, Count, Delivery, Due, Entries,
    Envelope, Error, ErrorKind, Inbox, LeaseId, Ledger, MessageId, Of, Oldest, OnMissing, Page, Pending,
    Producer, Query, Receive, Record, RecordQuery, Result, Scheduler, Sent, Settle, Subscription, Topic,
    Transport, Unsettled, ready,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// Fault of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// The send is refused with an error of this kind. It has no effect.
    Refused(ErrorKind),
    /// The send succeeds, but its confirmation is lost: `Timeout`.
    Unconfirmed,
    /// It happened, and its confirmation comes after [`Faulty::heal`].
    Late,
    /// There is no result for it, nor for what comes after it in its batch: none of them happened.
    Unanswered,
    /// The call never ends and has no effect.
    Pending,
    /// The call lasts until [`Faulty::heal`], and is then refused with an error of this kind.
    Stuck(ErrorKind),
}

/// Wrapper around any transport, with switches that make calls fail.
///
/// ```
/// use dwell_conformance::{faults::{Faulty, SendFault}, log::{Log, LogBroker, LogSettings}};
/// use dwell_core::*;
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let log = Log::connect(&LogBroker::new(LogSettings::default()), Seams::system("doc"))?;
/// let faulty = Faulty::new(Arc::new(log));
/// faulty.provision(&[Topic::named("orders")], &[], OnMissing::Create).await?;
/// let (orders, producer) = (Address::topic("orders"), faulty.producer().await?);
/// let send = || async {
///     producer.send(&[Envelope::new(orders.clone(), Message::new("a", "t", ""))]).await.remove(0)
/// };
///
/// faulty.fail_sends(&orders, SendFault::Refused(ErrorKind::Unavailable));
/// assert!(send().await.is_err());
/// faulty.heal();
/// assert!(send().await.is_ok());
/// assert_eq!(faulty.sent(&orders), 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<dyn Transport>,
    faults: Arc<Mutex<Faults>>,
    healed: watch::Sender<u64>,
}

#[derive(Default)]
struct Faults {
    sends: BTreeMap<Address, SendFault>,
    /// Number of the next settlements, renewals and scheduled entries that fail.
    settles: usize,
    extends: usize,
    schedules: usize,
    changes: usize,
    ends: usize,
    /// How many of the next deliveries cannot be read.
    unreadable: usize,
    /// Calls that reached the transport.
    sent: BTreeMap<Address, usize>,
    settled: usize,
    extended: usize,
    scheduled: usize,
    begun: usize,
    ended: usize,
}

impl Faulty {
    /// Wraps a transport. No fault is active.
    pub fn new(inner: Arc<dyn Transport>) -> Self {
        Self { inner, faults: Arc::default(), healed: watch::Sender::new(0) }
    }

    /// Makes sends to this address fail until [`Self::heal`].
    pub fn fail_sends(&self, to: &Address, fault: SendFault) {
        self.faults().sends.insert(to.clone(), fault);
    }

    /// Makes the next `count` settlements fail with `Unavailable`. They have no effect.
    pub fn fail_settles(&self, count: usize) {
        self.faults().settles = count;
    }

    /// Makes the next `count` calls of `extend` fail with `Unavailable`.
    pub fn fail_extends(&self, count: usize) {
        self.faults().extends = count;
    }

    /// Makes the next `count` scheduled entries fail with `Unavailable`. They are not stored.
    pub fn fail_schedules(&self, count: usize) {
        self.faults().schedules = count;
    }

    /// The next `count` changes of pending messages, by the scheduler or the ledger, are
    /// `Unavailable` and change nothing.
    pub fn fail_changes(&self, count: usize) {
        self.faults().changes = count;
    }

    /// The next `count` calls of `end_send` are `Unavailable` and are not recorded.
    pub fn fail_ends(&self, count: usize) {
        self.faults().ends = count;
    }

    /// The next `count` deliveries have a [`Delivery::problem`].
    pub fn spoil_deliveries(&self, count: usize) {
        self.faults().unreadable = count;
    }

    /// Clears all faults. Calls that hang in [`SendFault::Pending`] stay pending.
    pub fn heal(&self) {
        let mut faults = self.faults();
        faults.sends.clear();
        (faults.settles, faults.extends, faults.schedules) = (0, 0, 0);
        (faults.changes, faults.unreadable) = (0, 0);
        faults.ends = 0;
        self.healed.send_modify(|times| *times += 1);
    }

    /// Number of messages for this address that reached the transport.
    pub fn sent(&self, to: &Address) -> usize {
        self.faults().sent.get(to).copied().unwrap_or(0)
    }

    /// Number of settlements that reached the transport, with any result.
    pub fn settled(&self) -> usize {
        self.faults().settled
    }

    /// Number of renewals that reached the transport.
    pub fn extended(&self) -> usize {
        self.faults().extended
    }

    /// Number of entries that reached the scheduler.
    pub fn scheduled(&self) -> usize {
        self.faults().scheduled
    }

    fn change(&self) -> Result<()> {
        match take(&mut self.faults().changes, 1) {
            0 => Ok(()),
            _ => Err(unavailable("changing pending messages")),
        }
    }

    /// How many calls of `begin_send` were made.
    pub fn begun(&self) -> usize {
        self.faults().begun
    }

    /// How many calls of `end_send` were made, whatever came of them.
    pub fn ended(&self) -> usize {
        self.faults().ended
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes up to `wanted` from a budget of failures, and returns the number taken.
fn take(budget: &mut usize, wanted: usize) -> usize {
    let taken = wanted.min(*budget);
    *budget -= taken;
    taken
}

fn unavailable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what} failed: injected fault"))
}

impl Transport for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        self.inner.provision(topics, subscriptions, on_missing)
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        Box::pin(async move {
            let inner = self.inner.producer().await?;
            Ok(Arc::new(FaultyProducer { inner, of: self.clone() }) as Arc<dyn Producer>)
        })
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move {
            let inner = self.inner.consumer(of).await?;
            Ok(Arc::new(FaultyConsumer { inner, of: self.clone() }) as Arc<dyn Consumer>)
        })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        let inner = self.inner.scheduler()?;
        Some(Arc::new(FaultyScheduler { inner, of: self.clone() }))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let inner = self.inner.ledger()?;
        Some(Arc::new(FaultyLedger { inner, of: self.clone() }))
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.inner.inbox()
    }

    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        self.inner.background(stop)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

struct FaultyProducer {
    inner: Arc<dyn Producer>,
    of: Faulty,
}

impl Producer for FaultyProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(async move {
            let mut results = vec![];
            for envelope in batch {
                let fault = self.of.faults().sends.get(&envelope.to).copied();
                let refused = |kind| {
                    let text = format!("sending to `{}` failed: injected fault", envelope.to);
                    Err(Error::new(kind, text))
                };
                let result = match fault {
                    Some(SendFault::Refused(kind)) => refused(kind),
                    Some(SendFault::Stuck(kind)) => {
                        self.healed(self.of.healed.subscribe()).await;
                        refused(kind)
                    }
                    Some(SendFault::Late) => {
                        let healed = self.of.healed.subscribe();
                        let result = self.pass_on(envelope).await;
                        self.healed(healed).await;
                        result
                    }
                    Some(SendFault::Unanswered) => return results,
                    Some(SendFault::Pending) => std::future::pending().await,
                    Some(SendFault::Unconfirmed) => self.pass_on(envelope).await.and_then(|_| {
                        let text = format!("no confirmation for `{}`: injected fault", envelope.to);
                        Err(Error::new(ErrorKind::Timeout, text))
                    }),
                    None => self.pass_on(envelope).await,
                };
                results.push(result);
            }
            results
        })
    }
}

impl FaultyProducer {
    async fn healed(&self, mut healed: watch::Receiver<u64>) {
        // The owner that could heal the faults is gone, so they persist.
        if healed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn pass_on(&self, envelope: &Envelope) -> Result<Sent> {
        *self.of.faults().sent.entry(envelope.to.clone()).or_default() += 1;
        let result = self.inner.send(std::slice::from_ref(envelope)).await.pop();
        result.unwrap_or_else(|| Err(unavailable("a send without a result")))
    }
}

struct FaultyConsumer {
    inner: Arc<dyn Consumer>,
    of: Faulty,
}

impl Consumer for FaultyConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        let received = self.inner.receive_with(receive);
        Box::pin(async move {
            let mut deliveries = received.await?;
            let spoilt = take(&mut self.of.faults().unreadable, deliveries.len());
            for delivery in &mut deliveries[..spoilt] {
                delivery.problem = Some("the message is unreadable: injected fault".into());
            }
            Ok(deliveries)
        })
    }

    fn settle(&self, mut batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            let passed = {
                let mut faults = self.of.faults();
                let failing = take(&mut faults.settles, batch.len());
                let passed = batch.split_off(failing);
                faults.settled += passed.len();
                passed
            };
            let failed = batch.into_iter().map(|settle| Unsettled { settle, error: unavailable("settling") });
            let mut unsettled: Vec<_> = failed.collect();
            if !passed.is_empty() {
                unsettled.extend(self.inner.settle(passed).await);
            }
            unsettled
        })
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        let mut faults = self.of.faults();
        if take(&mut faults.extends, 1) > 0 {
            return ready(Err(unavailable("renewing a lease")));
        }
        faults.extended += leases.len();
        self.inner.extend(leases, by)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

struct FaultyScheduler {
    inner: Arc<dyn Scheduler>,
    of: Faulty,
}

impl Scheduler for FaultyScheduler {
    fn schedule(&self, mut entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        Box::pin(async move {
            let failing = take(&mut self.of.faults().schedules, entries.len());
            let passed = entries.split_off(failing);
            self.of.faults().scheduled += passed.len();
            let mut results: Vec<_> = entries.iter().map(|_| Err(unavailable("scheduling"))).collect();
            results.extend(self.inner.schedule(passed).await);
            results
        })
    }

    fn begin_send(&self, entries: Vec<Envelope>) -> BoxFuture<'_, Vec<Result<Sent>>> {
        self.of.faults().begun += 1;
        self.inner.begin_send(entries)
    }

    fn end_send(&self, entries: Vec<(Envelope, Option<Sent>)>) -> BoxFuture<'_, Result<()>> {
        let mut faults = self.of.faults();
        faults.ended += 1;
        if take(&mut faults.ends, 1) > 0 {
            return ready(Err(unavailable("recording the end of a send")));
        }
        self.inner.end_send(entries)
    }

    fn cancel<'a>(&'a self, entries: &'a Entries) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            self.of.change()?;
            self.inner.cancel(entries).await
        })
    }

    fn reschedule<'a>(&'a self, entries: &'a Entries, due: Due) -> BoxFuture<'a, Result<Changed>> {
        Box::pin(async move {
            self.of.change()?;
            self.inner.reschedule(entries, due).await
        })
    }

    fn pending(&self, query: Query) -> BoxFuture<'_, Result<Vec<Pending>>> {
        self.inner.pending(query)
    }
}

struct FaultyLedger {
    inner: Arc<dyn Ledger>,
    of: Faulty,
}

impl Ledger for FaultyLedger {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        self.inner.get(id)
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        self.inner.list(query)
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        self.inner.counts()
    }

    fn oldest_ready(&self) -> BoxFuture<'_, Result<Vec<Oldest>>> {
        self.inner.oldest_ready()
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        Box::pin(async move {
            self.of.change()?;
            self.inner.change(id, of, change, by).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Log, LogBroker, LogSettings};
    use dwell_core::{Action, Message, Note, Outcome, Seams, VirtualClock};

    fn orders() -> Subscription {
        Subscription::new("orders", "mail")
    }

    async fn faulty() -> (Faulty, Arc<dyn Producer>, Arc<dyn Consumer>) {
        let broker = LogBroker::new(LogSettings::default());
        let log = Log::connect(&broker, Seams::virtual_time(VirtualClock::new(), 1)).unwrap();
        let faulty = Faulty::new(Arc::new(log));
        faulty.provision(&[], &[orders()], OnMissing::Create).await.unwrap();
        let (producer, consumer) =
            (faulty.producer().await.unwrap(), faulty.consumer(orders()).await.unwrap());
        (faulty, producer, consumer)
    }

    fn envelope(to: &str, id: &str) -> Envelope {
        Envelope::new(Address::topic(to), Message::new(id, "t", ""))
    }

    async fn received(consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
        consumer.receive(10, Duration::ZERO, None).await.unwrap()
    }

    #[tokio::test]
    async fn a_send_fault_affects_only_its_address() {
        let (faulty, producer, consumer) = faulty().await;
        let batch = [envelope("orders.dlq", "a"), envelope("orders", "b")];
        let dead = Address::topic("orders.dlq");

        faulty.fail_sends(&dead, SendFault::Refused(ErrorKind::TooLarge));
        let results = producer.send(&batch).await;
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::TooLarge);
        assert!(results[1].is_ok());

        faulty.fail_sends(&dead, SendFault::Unanswered);
        assert!(producer.send(&batch).await.is_empty());

        faulty.fail_sends(&dead, SendFault::Pending);
        assert!(futures_util::poll!(producer.send(&batch)).is_pending());
        assert_eq!((faulty.sent(&dead), received(&consumer).await.len()), (0, 1));

        faulty.fail_sends(&dead, SendFault::Stuck(ErrorKind::Full));
        let mut stuck = producer.send(&batch[..1]);
        assert!(futures_util::poll!(&mut stuck).is_pending());
        faulty.heal();
        assert_eq!(stuck.await[0].as_ref().unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(faulty.sent(&dead), 0);

        faulty.fail_sends(&dead, SendFault::Unconfirmed);
        let results = producer.send(&batch).await;
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(faulty.sent(&dead), 1, "the message was sent");

        faulty.heal();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
        assert_eq!(faulty.sent(&dead), 2);
    }

    #[tokio::test]
    async fn settlements_and_renewals_fail_the_configured_number_of_times() {
        let (faulty, producer, consumer) = faulty().await;
        producer.send(&[envelope("orders", "a"), envelope("orders", "b")]).await;
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        let batch = received(&consumer).await.into_iter();
        let batch: Vec<_> =
            batch.map(|delivery| Settle { delivery, action: Action::ACK, note: note.clone() }).collect();
        let leases: Vec<_> = batch.iter().map(|settle| settle.delivery.receipt.lease()).collect();

        faulty.fail_extends(1);
        assert!(consumer.extend(leases.clone(), None).await.is_err());
        assert!(consumer.extend(leases, None).await.unwrap().is_empty());
        faulty.fail_settles(1);
        let mut unsettled = consumer.settle(batch).await;
        assert_eq!((unsettled.len(), faulty.settled(), faulty.extended()), (1, 1, 2));
        let left = unsettled.remove(0);
        assert!(left.error.is_retryable());
        assert!(consumer.settle(vec![left.settle]).await.is_empty());
    }
}
