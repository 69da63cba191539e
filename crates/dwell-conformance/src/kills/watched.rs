//! A transport that records deliveries, renewals and settlements in the journal. The engine above
//! it does not notice, and its own view is not recorded.

use super::journal::{Entry, Journal, Lease, lease};
use dwell_core::{
    BoxFuture, Capabilities, Clock, Consumer, Delivery, Inbox, LeaseId, Ledger, OnMissing, Producer, Receive,
    Result, Scheduler, Settle, Subscription, Text, Topic, Transport, Unsettled,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

pub(super) struct Watched {
    inner: Arc<dyn Transport>,
    journal: Arc<Journal>,
    clock: Arc<dyn Clock>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Transport>, journal: Arc<Journal>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, journal, clock }
    }
}

impl Transport for Watched {
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
            let place = of.address().to_string().into();
            let inner = self.inner.consumer(of).await?;
            let (journal, clock) = (self.journal.clone(), self.clock.clone());
            Ok(Arc::new(WatchedConsumer { inner, of: place, journal, clock }) as Arc<dyn Consumer>)
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

    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        self.inner.background(stop)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

struct WatchedConsumer {
    inner: Arc<dyn Consumer>,
    of: Text,
    journal: Arc<Journal>,
    clock: Arc<dyn Clock>,
}

impl Consumer for WatchedConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            let since = self.clock.moment().micros();
            let deliveries = self.inner.receive_with(receive).await?;
            self.journal.write(deliveries.iter().map(|delivery| Entry::Received {
                of: self.of.clone(),
                lease: lease(delivery.receipt.lease()),
                id: delivery.message.id.clone(),
                handled: delivery.message.attempts.handled,
                failed: delivery.message.attempts.failed,
                deliveries: delivery.deliveries,
                since,
            }));
            Ok(deliveries)
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(async move {
            let leases: Vec<_> = batch.iter().map(|settle| lease(settle.delivery.receipt.lease())).collect();
            let unsettled = self.inner.settle(batch).await;
            let failed = unsettled.iter().map(|failed| lease(failed.settle.delivery.receipt.lease()));
            let leases = without(leases, failed);
            if !leases.is_empty() {
                self.journal.write([Entry::Settled { of: self.of.clone(), leases }]);
            }
            unsettled
        })
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(async move {
            let since = self.clock.moment().micros();
            let asked: Vec<_> = leases.iter().copied().map(lease).collect();
            let lost = self.inner.extend(leases, by).await?;
            let leases = without(asked, lost.iter().copied().map(lease));
            if !leases.is_empty() {
                self.journal.write([Entry::Renewed { of: self.of.clone(), leases, since }]);
            }
            Ok(lost)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

fn without(mut leases: Vec<Lease>, gone: impl Iterator<Item = Lease>) -> Vec<Lease> {
    let gone: BTreeSet<_> = gone.collect();
    leases.retain(|lease| !gone.contains(lease));
    leases
}
