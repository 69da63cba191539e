//! A store that does not answer, or not well, when a story says so.

use dwell_core::{
    BoxFuture, Capabilities, Consumer, Delivery, Error, ErrorKind, Inbox, LeaseId, Ledger, OnMissing,
    Producer, Receive, Result, Scheduler, Settle, Subscription, Text, Topic, Transport, Unsettled,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// What a story may do to calls on their way to the store.
pub struct Faults {
    /// Receiving from this topic.
    pub receive: Mutex<Option<(Text, Fault)>>,
    pub extend: Gate,
    pub settle: Gate,
    /// The next settlement fails like this.
    pub refuse: Mutex<Option<ErrorKind>>,
    /// How many of the next renewals fail.
    pub unextended: AtomicUsize,
}

#[derive(Clone, Copy)]
pub enum Fault {
    Fails,
    Hangs,
}

/// Where calls wait while it is closed.
pub struct Gate {
    is_open: watch::Sender<bool>,
    waiting: AtomicUsize,
}

impl Gate {
    fn new() -> Self {
        Self { is_open: watch::Sender::new(true), waiting: AtomicUsize::new(0) }
    }

    pub fn close(&self) {
        self.is_open.send_replace(false);
    }

    pub fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// How many wait there now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        self.is_open.subscribe().wait_for(|is_open| *is_open).await.expect("the gate is there");
    }
}

/// A store with faults. It outlives whoever leaves it.
pub struct Faulty {
    inner: Arc<dyn Transport>,
    faults: Arc<Faults>,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Transport>) -> (Self, Arc<Faults>) {
        let faults = Arc::new(Faults {
            receive: Mutex::default(),
            extend: Gate::new(),
            settle: Gate::new(),
            refuse: Mutex::default(),
            unextended: AtomicUsize::new(0),
        });
        (Self { inner, faults: faults.clone() }, faults)
    }
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
        self.inner.producer()
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move {
            let topic = of.topic.clone();
            let inner = self.inner.consumer(of).await?;
            let consumer: Arc<dyn Consumer> = Arc::new(Member { inner, topic, faults: self.faults.clone() });
            Ok(consumer)
        })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.inner.scheduler()
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.inner.ledger()
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.inner.inbox()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        dwell_core::ready(Ok(()))
    }
}

struct Member {
    inner: Arc<dyn Consumer>,
    topic: Text,
    faults: Arc<Faults>,
}

impl Consumer for Member {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        let fault = self.faults.receive.lock().unwrap().clone();
        match fault.filter(|(topic, _)| *topic == self.topic) {
            None => self.inner.receive_with(receive),
            Some((_, Fault::Fails)) => {
                dwell_core::ready(Err(Error::new(ErrorKind::Unavailable, "the store is away for now")))
            }
            Some((_, Fault::Hangs)) => Box::pin(std::future::pending()),
        }
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            self.faults.settle.pass().await;
            let refused = self.faults.refuse.lock().unwrap().take();
            match refused {
                None => self.inner.settle(batch).await,
                Some(kind) => {
                    let unsettled =
                        |settle| Unsettled { settle, error: Error::new(kind, "the store does not like it") };
                    batch.into_iter().map(unsettled).collect()
                }
            }
        })
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(async move {
            self.faults.extend.pass().await;
            let left = |left: usize| left.checked_sub(1);
            if self.faults.unextended.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                return Err(Error::new(ErrorKind::Unavailable, "the store is away for now"));
            }
            self.inner.extend(leases, by).await
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}
