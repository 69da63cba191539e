//! A poor transport: memory that can only append and ack, and breaks on demand.

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

/// How sends to a topic go wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// With an error of this kind.
    Error(ErrorKind),
    /// With no answer at all for any item.
    NoAnswer,
    /// Never.
    Hangs,
}

#[derive(Default)]
pub struct Faults {
    /// Sends to these topics go wrong.
    pub sends: Mutex<BTreeMap<String, Broken>>,
    /// So many settlements fail.
    pub settles: AtomicUsize,
    /// So many receives fail, with this kind.
    pub receives: Mutex<Vec<ErrorKind>>,
    /// So many receives panic.
    pub panics: AtomicUsize,
    /// So many renewals never return.
    pub hanging_renewals: AtomicUsize,
    /// The next send takes so long.
    pub slow_send: Mutex<Option<(VirtualClock, Duration)>>,
    /// Settlements take so long.
    pub slow_settles: Mutex<Option<(VirtualClock, Duration)>>,
    /// Messages that were to be sent, whatever became of them.
    pub sent: AtomicUsize,
    /// Producers opened.
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

    /// Everything that memory can do, with faults.
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

fn away(kind: ErrorKind) -> Error {
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
                    Some(Broken::Error(kind)) => results.push(Err(away(kind))),
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
        assert!(!takes(&self.faults.panics), "a consumer that panics");
        let fault = self.faults.receives.lock().unwrap().pop();
        match fault {
            Some(kind) => ready(Err(away(kind))),
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
                    unsettled.push(Unsettled { settle, error: away(ErrorKind::Unavailable) });
                } else if !self.rich && !matches!(settle.action, Action::Ack { result: None }) {
                    unsettled.push(Unsettled { settle, error: away(ErrorKind::Unsupported) });
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
