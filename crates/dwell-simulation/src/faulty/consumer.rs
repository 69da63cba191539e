//! Consumer that injects faults and records deliveries and settlements.

use super::{
    destination,
    link::{Call, Carried, Link},
    producer::placed,
    timeout, unavailable,
};
use crate::{
    scene::current_request,
    trace::{Event, Fault, How, Placed, Received, Settled, Subject, Touched},
};
use dwell_core::{
    Action, Address, BoxFuture, Consumer, Delivery, Envelope, LeaseId, Receipt, Receive, Result, Settle,
    Unsettled,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(super) struct FaultyConsumer {
    inner: Arc<dyn Consumer>,
    link: Arc<Link>,
    of: Address,
    number: u64,
    /// Set if leases last as long as the session.
    sessions: bool,
    /// Number of sessions lost when it last joined.
    joined: AtomicU64,
    /// Delivered by the broker but not yet returned: dropping a receive loses nothing.
    fetched: Mutex<Vec<Delivery>>,
    /// Deliveries that may be settled or extended.
    held: Mutex<BTreeMap<LeaseId, Touched>>,
}

impl FaultyConsumer {
    pub(super) fn new(
        inner: Arc<dyn Consumer>,
        link: Arc<Link>,
        of: Address,
        number: u64,
        sessions: bool,
    ) -> Self {
        let joined = AtomicU64::new(link.sessions_lost());
        Self { inner, link, of, number, sessions, joined, fetched: Mutex::default(), held: Mutex::default() }
    }

    fn fetched(&self) -> MutexGuard<'_, Vec<Delivery>> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Touched>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_fetched(&self, max: usize) -> Vec<Delivery> {
        let mut fetched = self.fetched();
        let count = fetched.len().min(max);
        fetched.drain(..count).collect()
    }

    fn touched(&self, delivery: &Delivery) -> Touched {
        let subject = Subject::of(&delivery.message);
        Touched { subject, to: destination(&self.of, &delivery.message) }
    }

    async fn receive(&self, receive: Receive) -> Result<Vec<Delivery>> {
        let max = receive.max;
        const CALL: &str = "receive";
        let link = &self.link;
        link.crash_point().await;
        link.latency(&Call::new(CALL, &[])).await;
        let late = self.take_fetched(max);
        if !late.is_empty() {
            return Ok(late);
        }
        if let Some(error) = link.refusal(&Call::new(CALL, &[])) {
            return Err(error);
        }
        let batch = tokio::select! {
            biased;
            () = link.scene.until_out(link.service) => {
                link.fault(Fault::Refused, &Call::new(CALL, &[]));
                return Err(unavailable(CALL));
            }
            batch = self.inner.receive_with(receive) => batch?,
        };
        let lost = link.sessions_lost();
        if self.sessions && !batch.is_empty() && self.joined.swap(lost, Ordering::Relaxed) != lost {
            link.scene.record(Event::Membership(self.of.clone()));
        }
        for delivery in &batch {
            self.record_received(delivery);
        }
        let touched: Vec<_> = batch.iter().map(|delivery| self.touched(delivery)).collect();
        // A lease of a session does not expire, so its deliveries must not get lost on the way.
        if !batch.is_empty() && !self.sessions && link.happens(|rates| rates.lost_delivery) {
            link.fault(Fault::LostDelivery, &Call::new(CALL, &touched));
            return Err(timeout(CALL));
        }
        self.fetched().extend(batch);
        link.crash_point().await;
        link.latency(&Call::new(CALL, &touched)).await;
        Ok(self.take_fetched(max))
    }

    fn record_received(&self, delivery: &Delivery) {
        let lease = delivery.receipt.lease();
        let touched = self.touched(delivery);
        self.link.scene.record(Event::Received(Box::new(Received {
            service: self.link.service,
            who: self.link.who(),
            consumer: self.number,
            subscription: self.of.clone(),
            to: touched.to.clone(),
            subject: touched.subject.clone(),
            attempts: delivery.message.attempts,
            lease,
            deliveries: delivery.deliveries,
        })));
        self.held().insert(lease, touched);
    }

    async fn settle(&self, batch: Vec<Settle>) -> Vec<Unsettled> {
        const CALL: &str = "settle";
        let link = &self.link;
        let (going, mut left) = self.refuse_some(batch);
        let kept: Vec<Settle> = going.iter().map(again).collect();
        let touched: Vec<_> = going.iter().map(|settle| self.touched(&settle.delivery)).collect();
        let act = {
            let (inner, link, of) = (self.inner.clone(), self.link.clone(), self.of.clone());
            let request = current_request();
            async move {
                let asked: Vec<Settle> = going.iter().map(again).collect();
                let unsettled = inner.settle(going).await;
                let failed = |lease: LeaseId| {
                    unsettled.iter().any(|unsettled| unsettled.settle.delivery.receipt.lease() == lease)
                };
                for settle in asked.iter().filter(|settle| !failed(settle.delivery.receipt.lease())) {
                    record_settled(&link, &of, settle, request);
                }
                unsettled
            }
        };
        let unsettled = match link.carry(Call::new(CALL, &touched), act).await {
            Carried::Answered(unsettled) => unsettled,
            Carried::NotDone(error) | Carried::Doubtful(_, error) => {
                kept.iter().map(|settle| Unsettled { settle: again(settle), error: error.again() }).collect()
            }
        };
        let mut held = self.held();
        for settle in &kept {
            let lease = settle.delivery.receipt.lease();
            if !unsettled.iter().any(|unsettled| unsettled.settle.delivery.receipt.lease() == lease) {
                held.remove(&lease);
            }
        }
        drop(held);
        left.extend(unsettled);
        left
    }

    /// Refuses some items of the batch.
    fn refuse_some(&self, batch: Vec<Settle>) -> (Vec<Settle>, Vec<Unsettled>) {
        let link = &self.link;
        if batch.len() < 2 || !link.happens(|rates| rates.partly_refused) {
            return (batch, vec![]);
        }
        let (refused, going): (Vec<_>, Vec<_>) = batch.into_iter().partition(|_| link.dice.chance(0.5));
        let touched: Vec<_> = refused.iter().map(|settle| self.touched(&settle.delivery)).collect();
        if !touched.is_empty() {
            link.fault(Fault::PartlyRefused, &Call::new("settle", &touched));
        }
        let refused = refused.into_iter().map(|settle| Unsettled { settle, error: unavailable("settle") });
        (going, refused.collect())
    }

    async fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> Result<Vec<LeaseId>> {
        let touched: Vec<_> = {
            let held = self.held();
            leases.iter().filter_map(|lease| held.get(lease).cloned()).collect()
        };
        let inner = self.inner.clone();
        let call = Call { name: "extend", touched: &touched, renews: Some(&self.of) };
        let carried = self.link.carry(call, async move { inner.extend(leases, by).await }).await;
        match carried {
            Carried::Answered(lost) => {
                let lost = lost?;
                let mut held = self.held();
                lost.iter().for_each(|lease| _ = held.remove(lease));
                Ok(lost)
            }
            Carried::NotDone(error) | Carried::Doubtful(_, error) => Err(error),
        }
    }

    async fn close(&self) -> Result<()> {
        let (inner, link, of) = (self.inner.clone(), self.link.clone(), self.of.clone());
        let (number, sessions) = (self.number, self.sessions);
        let act = async move {
            let closed = inner.close().await;
            if closed.is_ok() {
                link.scene.record(Event::GaveBack(link.who(), number, of.clone()));
                if link.closed(number) && sessions {
                    link.scene.record(Event::Membership(of));
                }
            }
            closed
        };
        self.link.carry(Call::new("close", &[]), act).await.answer()
    }
}

/// Copies a settlement, since the inner consumer takes it by value.
fn again(settle: &Settle) -> Settle {
    let receipt = &settle.delivery.receipt;
    let LeaseId { position, fence } = receipt.lease();
    let delivery = Delivery {
        message: settle.delivery.message.clone(),
        deliveries: settle.delivery.deliveries,
        due: settle.delivery.due,
        problem: None,
        receipt: Receipt::new(position, fence).with_identity(receipt.identity()),
    };
    Settle { delivery, action: settle.action.clone(), note: settle.note.clone() }
}

fn record_settled(link: &Link, of: &Address, settle: &Settle, request: Option<usize>) {
    let subject = Subject::of(&settle.delivery.message);
    let lease = settle.delivery.receipt.lease();
    let how = match &settle.action {
        Action::Ack { .. } => How::Ack,
        Action::Release => How::Release,
        Action::Move { .. } => How::Move,
    };
    let (service, who, subscription) = (link.service, link.who(), of.clone());
    let deliveries = settle.delivery.deliveries;
    let settled = Settled { service, who, subscription, subject, lease, deliveries, how };
    link.scene.record(Event::Settled(Box::new(settled)));
    if let Action::Move { to, due } = &settle.action {
        let envelope = Envelope::new(to.clone(), settle.delivery.message.clone()).due(*due);
        let placed = Placed { who: Some(who), request, moved: true, ..placed(service, &envelope) };
        link.scene.record(Event::Placed(Box::new(placed)));
    }
}

impl Consumer for FaultyConsumer {
    fn receive_with(&self, receive: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.link.life.while_alive(self.receive(receive)))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Vec<Unsettled>> {
        Box::pin(self.settle(batch))
    }

    fn extend(&self, leases: Vec<LeaseId>, by: Option<Duration>) -> BoxFuture<'_, Result<Vec<LeaseId>>> {
        Box::pin(self.extend(leases, by))
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.close())
    }
}

/// A consumer dropped by a live process is gone at once; after a crash, the broker finds out later.
impl Drop for FaultyConsumer {
    fn drop(&mut self) {
        if self.link.life.is_alive() && self.link.closed(self.number) {
            self.link.scene.record(match self.sessions {
                true => Event::Membership(self.of.clone()),
                false => Event::Dropped(self.link.who(), self.number, self.of.clone()),
            });
        }
    }
}
