//! The measured transport, and an engine on it.

use bytes::Bytes;
use dwell_core::{Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Topic, Transport};
use dwell_engine::{Begun, Context, Engine, Handler, SubscriptionSettings, Verdict, Work};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

pub(crate) const TOPIC: &str = "bench";
pub(crate) const KIND: &str = "bench.message";
pub(crate) const BODY: usize = 100;

pub(crate) fn open(path: &Path, seams: &Seams) -> Sqlite {
    Sqlite::open(SqliteSettings::file(path), seams.clone()).expect("the file can be created")
}

/// Opens a file with one topic and one subscription to it.
pub(crate) async fn open_subscribed(path: &Path, seams: &Seams) -> (Sqlite, Subscription) {
    let sqlite = open(path, seams);
    let subscription = Subscription::new(TOPIC, TOPIC);
    let (topics, subscriptions) = ([Topic::named(TOPIC)], [subscription.clone()]);
    let made = sqlite.provision(&topics, &subscriptions, OnMissing::Create);
    made.await.expect("the file is writable");
    (sqlite, subscription)
}

pub(crate) fn envelope(seams: &Seams, due: Due) -> Envelope {
    let message = Message::new(seams.ids.next(), KIND, Bytes::from_static(&[b'x'; BODY]));
    Envelope::new(Address::topic(TOPIC), message).due(due)
}

pub(crate) fn envelopes(seams: &Seams, count: usize) -> Vec<Envelope> {
    (0..count).map(|_| envelope(seams, Due::NOW)).collect()
}

/// Default number of messages that a subscription requests at a time, and a number large enough for
/// any benchmark.
pub(crate) const DEFAULT_BATCH: usize = 10;
pub(crate) const LARGE_BATCH: usize = 10_000;

/// Returns an engine that passes all messages of the topic to this handler, and requests this
/// number at a time.
pub(crate) async fn engine(path: &Path, seams: &Seams, handler: Arc<dyn Handler>, batch: usize) -> Engine {
    let sqlite: Arc<dyn Transport> = Arc::new(open(path, seams));
    let engine = Engine::builder(sqlite, seams.clone()).build().await.expect("SQLite needs no store");
    let settings = SubscriptionSettings { batch, ..SubscriptionSettings::new(TOPIC, TOPIC) };
    engine.subscribe(settings, Work::Async(handler)).await.expect("the settings are valid");
    engine
}

/// Sends a batch, and checks each result.
pub(crate) async fn send(engine: &Engine, batch: &[Envelope]) {
    for result in engine.send(batch).await {
        result.expect("the send succeeds");
    }
}

/// Handler that counts messages.
pub(crate) struct Count {
    left: AtomicUsize,
    done: Notify,
}

impl Count {
    pub(crate) fn down_from(messages: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(messages), done: Notify::new() })
    }

    /// Waits until all messages are handled.
    pub(crate) async fn done(&self) {
        self.done.notified().await;
    }
}

impl Handler for Count {
    fn begin(&self, _: Message, _: Context, _: &mut std::task::Context<'_>) -> Begun {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
        Begun::Done(Verdict::ACK)
    }
}
