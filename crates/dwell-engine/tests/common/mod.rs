//! Test environment of the engine: memory, virtual time and recorded runs.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

pub mod declaring;
pub mod poor;

use bytes::Bytes;
use dwell_core::*;
use dwell_engine::{
    Context, Engine, Pump, SubscriptionSettings, Verdict, Work,
    memory::{Memory, MemorySettings},
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub const SECOND: Duration = Duration::from_secs(1);

/// A run of a handler.
#[derive(Clone, Debug, PartialEq)]
pub struct Ran {
    pub id: String,
    pub at: Duration,
    pub attempts: Attempts,
    pub subscription: String,
}

#[derive(Clone)]
pub struct World {
    pub clock: VirtualClock,
    pub memory: Arc<Memory>,
    pub engine: Engine,
    pub ran: Arc<Mutex<Vec<Ran>>>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(MemorySettings::default()).await
    }

    pub async fn with(settings: MemorySettings) -> Self {
        let clock = VirtualClock::new();
        let seams = Seams::virtual_time(clock.clone(), 1);
        let memory = Arc::new(Memory::new(seams.clone(), settings));
        let engine = Engine::builder(memory.clone(), seams).build().await.unwrap();
        Self { clock, memory, engine, ran: Arc::default() }
    }

    /// Creates an engine on any transport, on the same clock.
    pub async fn on(transport: Arc<dyn Transport>, memory: Arc<Memory>, clock: VirtualClock) -> Self {
        let seams = Seams::virtual_time(clock.clone(), 2);
        let engine = Engine::builder(transport, seams).build().await.unwrap();
        Self { clock, memory, engine, ran: Arc::default() }
    }

    /// Subscribes with a function that returns the verdict of each run. Runs are recorded.
    pub async fn handle(
        &self,
        settings: SubscriptionSettings,
        verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + Clone + 'static,
    ) -> Pump {
        self.engine.subscribe(settings, self.work(verdict)).await.unwrap()
    }

    pub fn work(&self, verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + Clone + 'static) -> Work {
        let (world, runs) = (self.clone(), Arc::new(AtomicUsize::new(0)));
        Work::Async(Arc::new(move |message: Message, context: Context| {
            world.record(&message, &context);
            let verdict = verdict(&message, runs.fetch_add(1, Ordering::SeqCst));
            async move { verdict }
        }))
    }

    /// Like `handle`, with a blocking handler.
    pub async fn handle_blocking(
        &self,
        settings: SubscriptionSettings,
        verdict: impl Fn(&Message, usize) -> Verdict + Send + Sync + 'static,
    ) -> Pump {
        let (world, runs) = (self.clone(), AtomicUsize::new(0));
        let handler = move |message: Message, context: Context| {
            world.record(&message, &context);
            verdict(&message, runs.fetch_add(1, Ordering::SeqCst))
        };
        self.engine.subscribe(settings, Work::Blocking(Arc::new(handler))).await.unwrap()
    }

    pub fn record(&self, message: &Message, context: &Context) {
        self.ran.lock().unwrap().push(Ran {
            id: message.id.to_string(),
            at: self.clock.elapsed(),
            attempts: message.attempts,
            subscription: context.place.subscription.to_string(),
        });
    }

    pub async fn send(&self, envelope: Envelope) -> Sent {
        self.engine.send(&[envelope]).await.pop().unwrap().unwrap()
    }

    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by).await;
    }

    pub async fn idle(&self) {
        self.clock.idle().await;
    }

    pub fn ran(&self) -> Vec<Ran> {
        self.ran.lock().unwrap().clone()
    }

    /// Returns the start of each run, in seconds.
    pub fn times(&self) -> Vec<f64> {
        self.ran().iter().map(|ran| ran.at.as_secs_f64()).collect()
    }

    pub fn ids(&self) -> Vec<String> {
        self.ran().into_iter().map(|ran| ran.id).collect()
    }

    /// Returns the records in a state, ordered by message id.
    pub async fn in_state(&self, state: State) -> Vec<Record> {
        let query = RecordQuery { states: vec![state], limit: 1000, ..RecordQuery::default() };
        self.memory.ledger().unwrap().list(query).await.unwrap().items
    }
}

pub fn orders() -> SubscriptionSettings {
    let retry = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
    SubscriptionSettings { retry, ..SubscriptionSettings::new("orders", "mail") }
}

pub fn order(id: &str) -> Envelope {
    Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", Bytes::from("42")))
}

pub fn keyed(id: &str, key: &str) -> Envelope {
    let mut envelope = order(id);
    envelope.message.key = Some(Bytes::from(key.to_owned()));
    envelope
}
