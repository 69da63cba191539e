//! A connection that an engine may close.

use dwell_core::{
    BoxFuture, Capabilities, Consumer, Inbox, Ledger, OnMissing, Producer, Result, Scheduler, Subscription,
    Topic, Transport, ready,
};
use std::sync::Arc;

/// Wraps a connection for an engine that closes it. Closing a transport without persistence would
/// discard its data. The wrapper keeps it open until the case has ended, as a server would.
pub fn kept(transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
    if transport.capabilities().durable { transport } else { Arc::new(Kept(transport)) }
}

struct Kept(Arc<dyn Transport>);

impl Transport for Kept {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        self.0.provision(topics, subscriptions, on_missing)
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        self.0.producer()
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        self.0.consumer(of)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.0.scheduler()
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.0.ledger()
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.0.inbox()
    }

    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        self.0.background(stop)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        ready(Ok(()))
    }
}
