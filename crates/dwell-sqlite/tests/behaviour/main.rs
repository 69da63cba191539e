//! Behaviour of SQLite through the transport traits, on virtual time, with a separate file for each
//! test.

mod carrying;
mod control;
mod damaged;
#[path = "../rig/directory.rs"]
mod directory;
#[cfg(target_os = "linux")]
mod disk;
mod faults;
mod foreign;
mod history;
mod inbox;
#[path = "../rig/invariants.rs"]
mod invariants;
mod ledger;
mod mass;
mod once;
mod order;
mod pages;
mod passed_over;
mod provisioning;
mod random;
#[cfg(target_os = "linux")]
mod read_only;
mod real_time;
mod reopening;
mod retention;
mod settling;
mod sharing;
mod size;
mod temporary;
mod waiting;
mod waking;

use dwell_core::{
    Action, Address, Clock, Consumer, Delivery, Due, Envelope, ErrorKind, Message, Note, OnMissing, Outcome,
    Result, Sent, Settle, Subscription, Timestamp, Topic, Transport, Unsettled, VirtualClock,
};
use dwell_sqlite::{Sqlite, SqliteSettings, Synchronous};
use std::{
    slice::from_ref,
    sync::{Arc, Mutex},
    time::Duration,
};
use temporary::{Held, Temporary};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

/// Settings of a test. Finished records are not kept by default.
fn settings() -> SqliteSettings {
    SqliteSettings { synchronous: Synchronous::Normal, done: Duration::ZERO, ..SqliteSettings::memory() }
}

/// Broker with two subscriptions of `orders`: `mail` and `stock`.
struct Broker {
    clock: VirtualClock,
    sqlite: Sqlite,
    mail: Arc<dyn Consumer>,
    stock: Arc<dyn Consumer>,
    file: Temporary,
}

impl Broker {
    async fn new() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: SqliteSettings) -> Self {
        Self::on(VirtualClock::new(), Temporary::new(), settings).await
    }

    async fn on(clock: VirtualClock, file: Temporary, settings: SqliteSettings) -> Self {
        let sqlite = file.open(settings, &clock).unwrap();
        let of = |name| Subscription::new("orders", name);
        sqlite.provision(&[], &[of("mail"), of("stock")], OnMissing::Create).await.unwrap();
        let mail = sqlite.consumer(of("mail")).await.unwrap();
        let stock = sqlite.consumer(of("stock")).await.unwrap();
        Self { clock, sqlite, mail, stock, file }
    }

    /// Returns another consumer of `mail`.
    async fn another(&self) -> Arc<dyn Consumer> {
        self.sqlite.consumer(Subscription::new("orders", "mail")).await.unwrap()
    }

    async fn subscribe(&self, subscription: Subscription) -> Arc<dyn Consumer> {
        self.sqlite.provision(&[], from_ref(&subscription), OnMissing::Create).await.unwrap();
        self.sqlite.consumer(subscription).await.unwrap()
    }

    async fn send(&self, envelope: Envelope) -> Result<Sent> {
        self.sqlite.producer().await?.send(&[envelope]).await.remove(0)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn held(&self) -> Held {
        self.file.held()
    }

    /// Receives in a separate task, and records the deliveries and the time.
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
        let (at, result) = self.0.lock().unwrap().take().expect("the receiver is still waiting");
        (at, result.unwrap())
    }

    fn failed(&self) -> ErrorKind {
        let (_, result) = self.0.lock().unwrap().take().expect("the receiver is still waiting");
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

/// Receives the messages available now, and returns their ids.
async fn seen(consumer: &Arc<dyn Consumer>) -> Vec<String> {
    ids(&receive(consumer).await)
}

fn ids(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.message.id.to_string()).collect()
}

/// Receives the only available delivery.
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

/// Counts one more run, and moves the message to its own subscription for later.
async fn defer(consumer: &Arc<dyn Consumer>, mut delivery: Delivery, to: &str, due: Due) {
    delivery.message.attempts.handled += 1;
    let action = Action::Move { to: Address::subscription("orders", to), due };
    assert!(settle(consumer, delivery, action).await.is_empty());
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}
