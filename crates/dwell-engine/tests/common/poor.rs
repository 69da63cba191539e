//! A transport that supports only appends and acks, and fails on demand.

use dwell_core::*;
use dwell_engine::memory::Memory;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// How sends to a topic fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// They return an error of this kind.
    Error(ErrorKind),
    /// They return no result for any item.
    NoAnswer,
    /// They never return.
    Hangs,
}

#[derive(Default)]
pub struct Faults {
    /// Topics to which sends fail.
    pub sends: Mutex<BTreeMap<String, Broken>>,
    /// Number of settlements that will fail.
    pub settles: AtomicUsize,
    /// Kinds of errors for the next receives.
    pub receives: Mutex<Vec<ErrorKind>>,
    /// Number of receives that will panic.
    pub panics: AtomicUsize,
    /// Number of renewals that will never return.
    pub hanging_renewals: AtomicUsize,
    /// Duration of the next send.
    pub slow_send: Mutex<Option<(VirtualClock, Duration)>>,
    /// Duration of settlements.
    pub slow_settles: Mutex<Option<(VirtualClock, Duration)>>,
    /// Number of messages passed to `send`, whatever their result.
    pub sent: AtomicUsize,
    /// Number of opened producers.
    pub producers: AtomicUsize,
}

#[derive(Clone)]
pub struct Poor {
    pub inner: Arc<Memory>,
    pub faults: Arc<Faults>,
    pub rich: bool,
}

impl Poor {
    pub fn new(inner: Arc<Memory>) -> Self {
        Self { inner, faults: Arc::default(), rich: false }
    }

    /// Creates a transport with all capabilities of memory, and faults.
    pub fn rich(inner: Arc<Memory>) -> Self {
        Self { rich: true, ..Self::new(inner) }
    }

    pub fn break_topic(&self, topic: &str, broken: Option<Broken>) {
        let mut sends = self.faults.sends.lock().unwrap();
        match broken {
            Some(broken) => sends.insert(topic.to_owned(), broken),
            None => sends.remove(topic),
        };
    }
}

fn takes(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn planned_error(kind: ErrorKind) -> Error {
    Error::new(kind, "broken on purpose")
}

impl Transport for Poor {
    fn capabilities(&self) -> Capabilities {
        let rich = self.inner.capabilities();
        if self.rich {
            return rich;
        }
        Capabilities { lease: rich.lease, durable: false, counts_deliveries: true, ..Capabilities::LEAST }
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
        Box::pin(async {
            self.faults.producers.fetch_add(1, Ordering::SeqCst);
            let inner = self.inner.producer().await?;
            Ok(Arc::new(PoorProducer { inner, faults: self.faults.clone() }) as Arc<dyn Producer>)
        })
    }
    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async {
            let inner = self.inner.consumer(of).await?;
            let consumer = PoorConsumer { inner, faults: self.faults.clone(), rich: self.rich };
            Ok(Arc::new(consumer) as Arc<dyn Consumer>)
        })
    }
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.inner.scheduler().filter(|_| self.rich)
    }
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.inner.ledger().filter(|_| self.rich)
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

struct PoorProducer {
    inner: Arc<dyn Producer>,
    faults: Arc<Faults>,
}

impl Producer for PoorProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(async move {
            self.faults.sent.fetch_add(batch.len(), Ordering::SeqCst);
            let slow = self.faults.slow_send.lock().unwrap().take();
            if let Some((clock, pause)) = slow {
                clock.sleep(pause).await;
            }
            let mut results = vec![];
            for envelope in batch {
                let broken = self.faults.sends.lock().unwrap().get(&**envelope.to.topic_name()).copied();
                match broken {
                    None => results.extend(self.inner.send(std::slice::from_ref(envelope)).await),
                    Some(Broken::Error(kind)) => results.push(Err(planned_error(kind))),
                    Some(Broken::NoAnswer) => return vec![],
                    Some(Broken::Hangs) => std::future::pending().await,
                }
            }
            results
        })
    }
}

struct PoorConsumer {
    inner: Arc<dyn Consumer>,
    faults: Arc<Faults>,
    rich: bool,
}

impl Consumer for PoorConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        assert!(!takes(&self.faults.panics), "planned panic of a consumer");
        let fault = self.faults.receives.lock().unwrap().pop();
        match fault {
            Some(kind) => ready(Err(planned_error(kind))),
            None => self.inner.receive_with(receive),
        }
    }
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            let slow = self.faults.slow_settles.lock().unwrap().clone();
            if let Some((clock, pause)) = slow {
                clock.sleep(pause).await;
            }
            let (mut fine, mut unsettled) = (vec![], vec![]);
            for settle in batch {
                if takes(&self.faults.settles) {
                    unsettled.push(Unsettled { settle, error: planned_error(ErrorKind::Unavailable) });
                } else if !self.rich && !matches!(settle.action, Action::Ack { result: None }) {
                    unsettled.push(Unsettled { settle, error: planned_error(ErrorKind::Unsupported) });
                } else {
                    fine.push(settle);
                }
            }
            unsettled.extend(self.inner.settle(fine).await);
            unsettled
        })
    }
    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        match takes(&self.faults.hanging_renewals) {
            true => Box::pin(std::future::pending()),
            false => self.inner.extend(leases, by),
        }
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}
