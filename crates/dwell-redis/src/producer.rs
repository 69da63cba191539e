//! The producer. Concurrent sends go to the server together.

use crate::{accept::accept, store::Store, together::Together};
use dwell_core::{BoxFuture, Envelope, Error, ErrorKind, Producer, Result, Sent};
use std::sync::Arc;

/// Number of messages from which a batch gets its own script.
const LARGE: usize = 50;

pub(crate) struct RedisProducer {
    store: Arc<Store>,
    sends: Together<Envelope, Result<Sent>>,
}

impl RedisProducer {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let sends = Together::new(&store, |store, batch| {
            Box::pin(async move { accept(&store, &batch.iter().collect::<Vec<_>>()).await })
        });
        Self { store, sends }
    }
}

impl Producer for RedisProducer {
    fn send<'a>(&'a self, batch: &'a [Envelope]) -> BoxFuture<'a, Vec<Result<Sent>>> {
        Box::pin(async move {
            if let Err(error) = self.store.open() {
                return batch.iter().map(|_| Err(error.again())).collect();
            }
            // Sends that wait for replicas would delay those behind them that go to other servers.
            if batch.len() >= LARGE || self.store.link.settings.replicas > 0 {
                return accept(&self.store, &batch.iter().collect::<Vec<_>>()).await;
            }
            self.sends.ask(batch.to_vec()).await.unwrap_or_else(|| {
                let text = "the sender was cancelled: the message may or may not have been sent";
                batch.iter().map(|_| Err(Error::new(ErrorKind::Timeout, text))).collect()
            })
        })
    }
}
