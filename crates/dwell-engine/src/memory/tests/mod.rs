//! Tests of the memory transport through its traits, on virtual time.

mod carrying;
mod control;
mod inbox;
mod ledger;
mod living;
mod oldest;
mod once;
mod order;
mod provisioning;
mod random;
mod settling;
mod waiting;
mod waking;

use super::{Held, Memory, MemorySettings};
use dwell_core::{
    Action, Address, Clock, Consumer, Delivery, Due, Envelope, ErrorKind, Message, Note, OnMissing, Outcome,
    Result, Seams, Sent, Settle, Subscription, Timestamp, Topic, Transport, Unsettled, VirtualClock,
};
use std::{
    slice::from_ref,
    sync::{Arc, Mutex},
    time::Duration,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// A broker with two subscriptions of `orders`: `mail` and `stock`.
struct Broker {
    clock: VirtualClock,
    memory: Memory,
    mail: Arc<dyn Consumer>,
    stock: Arc<dyn Consumer>,
}

impl Broker {
    async fn new() -> Self {
        Self::with(MemorySettings::default()).await
    }

    async fn with(settings: MemorySettings) -> Self {
        let clock = VirtualClock::new();
        let memory = Memory::new(Seams::virtual_time(clock.clone(), 1), settings);
        let of = |name| Subscription::new("orders", name);
        memory.provision(&[], &[of("mail"), of("stock")], OnMissing::Create).await.unwrap();
        let mail = memory.consumer(of("mail")).await.unwrap();
        let stock = memory.consumer(of("stock")).await.unwrap();
        Self { clock, memory, mail, stock }
    }

    /// Opens another consumer of `mail`.
    async fn another(&self) -> Arc<dyn Consumer> {
        self.memory.consumer(Subscription::new("orders", "mail")).await.unwrap()
    }

    async fn subscribe(&self, subscription: Subscription) -> Arc<dyn Consumer> {
        self.memory.provision(&[], from_ref(&subscription), OnMissing::Create).await.unwrap();
        self.memory.consumer(subscription).await.unwrap()
    }

    async fn send(&self, envelope: Envelope) -> Result<Sent> {
        self.memory.producer().await?.send(&[envelope]).await.remove(0)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Receives in a separate task. Records the result and its time.
    fn receiving(&self, consumer: &Arc<dyn Consumer>, max: usize, wait: Duration) -> Receiving {
        let (clock, consumer, seen) = (self.clock.clone(), consumer.clone(), Receiving::default());
        let into = seen.0.clone();
        tokio::spawn(self.clock.track(Box::pin(async move {
            let result = consumer.receive(max, wait, None).await.map(|deliveries| ids(&deliveries));
            *into.lock().unwrap() = Some((clock.elapsed(), result));
        })));
        seen
    }
}

/// Result of a receiver and its time, once it has returned.
#[derive(Clone, Default)]
struct Receiving(Arc<Mutex<Option<Received>>>);

type Received = (Duration, Result<Vec<String>>);

impl Receiving {
    fn is_waiting(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }

    fn got(&self) -> (Duration, Vec<String>) {
        let (at, result) = self.0.lock().unwrap().take().expect("the receiver has returned");
        (at, result.unwrap())
    }

    fn failed(&self) -> ErrorKind {
        let (_, result) = self.0.lock().unwrap().take().expect("the receiver has returned");
        result.unwrap_err().kind()
    }
}

fn order(id: &str) -> Envelope {
    Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", "42"))
}

fn keyed(id: &str, key: &str) -> Envelope {
    let mut envelope = order(id);
    envelope.message.key = Some(key.to_owned().into());
    envelope
}

fn after(delay: Duration) -> Due {
    Due::After(delay)
}

async fn receive(consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
    consumer.receive(100, Duration::ZERO, None).await.unwrap()
}

/// Receives what is ready now, and returns the ids.
async fn seen(consumer: &Arc<dyn Consumer>) -> Vec<String> {
    ids(&receive(consumer).await)
}

fn ids(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.message.id.to_string()).collect()
}

/// Returns the only ready delivery.
async fn one(consumer: &Arc<dyn Consumer>) -> Delivery {
    let mut deliveries = receive(consumer).await;
    assert_eq!(deliveries.len(), 1);
    deliveries.remove(0)
}

fn settlement(delivery: Delivery, action: Action) -> Settle {
    let outcome = match action {
        Action::Ack { .. } => Outcome::Handled,
        Action::Release => Outcome::Released,
        Action::Move { .. } => Outcome::Deferred,
    };
    Settle { delivery, action, note: Note { outcome, error: None, worker: "worker".into(), moved_to: None } }
}

async fn settle(consumer: &Arc<dyn Consumer>, delivery: Delivery, action: Action) -> Vec<Unsettled> {
    consumer.settle(vec![settlement(delivery, action)]).await
}

async fn ack(consumer: &Arc<dyn Consumer>, delivery: Delivery) {
    let unsettled = settle(consumer, delivery, Action::ACK).await;
    assert!(unsettled.is_empty(), "{unsettled:?}");
}

async fn release_all(consumer: &Arc<dyn Consumer>, deliveries: Vec<Delivery>) {
    let batch = deliveries.into_iter().map(|delivery| settlement(delivery, Action::Release)).collect();
    assert!(consumer.settle(batch).await.is_empty());
}

/// Counts a run, and moves the message to its own subscription for later.
async fn defer(consumer: &Arc<dyn Consumer>, mut delivery: Delivery, to: &str, due: Due) {
    delivery.message.attempts.handled += 1;
    let action = Action::Move { to: Address::subscription("orders", to), due };
    assert!(settle(consumer, delivery, action).await.is_empty());
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}
