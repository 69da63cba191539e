//! Transport that injects faults.

use super::{
    consumer::FaultyConsumer,
    ledger::FaultyLedger,
    link::{Call, Link},
    producer::FaultyProducer,
    scheduler::FaultyScheduler,
};
use crate::trace::Event;
use dwell_core::{
    BoxFuture, Capabilities, Consumer, Inbox, Lease, Ledger, OnMissing, Producer, Result, Scheduler,
    Subscription, Topic, Transport, ready,
};
use std::sync::Arc;

/// Connection of one process to a service.
pub(crate) struct Faulty {
    inner: Arc<dyn Transport>,
    link: Arc<Link>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Transport>, link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { inner, link })
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
        Box::pin(async move {
            let (inner, topics, subscriptions) =
                (self.inner.clone(), topics.to_vec(), subscriptions.to_vec());
            let act = async move { inner.provision(&topics, &subscriptions, on_missing).await };
            self.link.carry(Call::new("provision", &[]), act).await.answer()
        })
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        Box::pin(async move {
            let inner = self.inner.clone();
            let opened = self
                .link
                .carry(Call::new("producer", &[]), async move { inner.producer().await })
                .await
                .answer()?;
            Ok(Arc::new(FaultyProducer { inner: opened, link: self.link.clone() }) as Arc<dyn Producer>)
        })
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move {
            let (inner, address, asked) = (self.inner.clone(), of.address(), of.clone());
            let sessions = matches!(self.inner.capabilities().lease, Lease::Session);
            let (link, joined) = (self.link.clone(), address.clone());
            // If the result is lost here, the consumer is dropped with it.
            let opened = self
                .link
                .carry(Call::new("consumer", &[]), async move {
                    let consumer = inner.consumer(asked).await?;
                    let number = link.opened(joined.clone(), consumer.clone());
                    if sessions {
                        link.scene.record(Event::Membership(joined.clone()));
                    }
                    Ok(FaultyConsumer::new(consumer, link, joined, number, sessions))
                })
                .await;
            opened.answer().map(|consumer| Arc::new(consumer) as Arc<dyn Consumer>)
        })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        let inner = self.inner.scheduler()?;
        Some(Arc::new(FaultyScheduler { inner, link: self.link.clone() }))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let inner = self.inner.ledger()?;
        Some(Arc::new(FaultyLedger { inner, link: self.link.clone() }))
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.inner.inbox()
    }

    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        self.inner.background(stop)
    }

    /// Returns at once: the broker stays, since other processes are connected to it too.
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        ready(Ok(()))
    }
}
