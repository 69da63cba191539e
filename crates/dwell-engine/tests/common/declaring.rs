//! A transport that declares changed capabilities.

use dwell_core::*;
use std::sync::Arc;

/// Wraps a transport and changes its capabilities. It has no scheduler and no ledger, so declare
/// none.
pub struct Declaring(pub Arc<dyn Transport>, pub fn(Capabilities) -> Capabilities);

impl Transport for Declaring {
    fn capabilities(&self) -> Capabilities {
        (self.1)(self.0.capabilities())
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
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}
