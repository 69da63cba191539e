//! Dwell on Redis: transport, scheduler, ledger, dead letters and inbox, on a server or a cluster.
//!
//! ```text
//!            one script            {orders}: one hash slot            one script
//!   send ───────────────▶ waiting · due ──── promote ───▶ ready:mail ────────────▶ receive
//!   cancel, reschedule ──▶  (hash, zset)   (server time)  ready:stock   claim       settle
//!                                                          (streams)
//! ```
//!
//! Invariants between two scripts:
//!
//! * **A message is stored in exactly one place**: as a pending message, in the stream of one
//!   subscription, or, with a ledger, as a finished record. Every step that affects more than one
//!   key is one script, in one hash slot.
//! * **Never early.** The server's clock decides which messages are due, and resolves
//!   every delay.
//! * **Never lost.** A message leaves its consumer by a receipt with a matching fence and owner, by
//!   `close`, or when its lease expires. Streams are never trimmed; settled messages are removed
//!   from them.
//! * **No missed wake-ups.** A waiting receive has a blocking read on its streams, knows the next
//!   due time and the first lease that may expire, and polls every few seconds in any case.
//! * **Everything is bounded**: the work of one script, the size of one read, and the number of
//!   finished records.
//!
//! The documentation page about Redis describes the settings and the layout.
#![forbid(unsafe_code)]

mod accept;
#[cfg(test)]
mod bounds;
mod buckets;
mod calls;
mod change;
mod consumer;
mod declared;
mod doubts;
mod entries;
mod fault;
mod inbox;
mod item;
mod keys;
mod ledger;
mod link;
mod persistence;
mod places;
mod producer;
mod promoter;
mod provision;
mod replicas;
mod scheduler;
mod script;
mod settings;
mod settle;
mod shared;
mod store;
mod together;
mod waiter;

pub use settings::{Promoter, RedisSettings};

use consumer::RedisConsumer;
use dwell_core::{
    AtomicMove, BoxFuture, Capabilities, Consumer, Inbox, Lease, Ledger, OnMissing, Producer, Result,
    Scheduler, Seams, Subscription, Topic, Transport, TransportUrl,
};
use inbox::RedisInbox;
use ledger::RedisLedger;
use link::Link;
use producer::RedisProducer;
use scheduler::RedisScheduler;
use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};
use store::Store;

/// Connection to Redis. A clone is the same connection.
///
/// ```no_run
/// use dwell_core::{
///     Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport, TransportUrl,
/// };
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// let url = TransportUrl::parse("redis://localhost:6379")?;
/// let redis = dwell_redis::connect(&url, Seams::system("example")).await?;
/// redis.provision(&[], &[Subscription::new("orders", "mail")], OnMissing::Create).await?;
///
/// let reminder = Envelope::new(Address::topic("orders"), Message::new("2", "orders.unpaid", "{}"))
///     .due(Due::After(Duration::from_secs(5 * 24 * 3600)));
/// for sent in redis.producer().await?.send(&[reminder]).await {
///     sent?;
/// }
/// redis.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct Redis {
    store: Arc<Store>,
    producer: Arc<OnceLock<Arc<RedisProducer>>>,
    ledger: Arc<RedisLedger>,
}

/// Connects to the server or cluster of a URL: `redis://user:password@host:port/0?option=value`, or
/// `rediss://` for TLS.
pub async fn connect(url: &TransportUrl, seams: Seams) -> Result<Redis> {
    Redis::open(RedisSettings::from_url(url)?, seams).await
}

/// Promotes due messages in every topic until `stop` completes: a separate promoter for
/// [`Promoter::Elsewhere`]. Any number may run at once.
pub async fn promote(url: &TransportUrl, seams: Seams, stop: BoxFuture<'static, ()>) -> Result<()> {
    let redis = connect(url, seams).await?;
    promoter::promote(redis.store.clone(), stop).await?;
    redis.close().await
}

impl Redis {
    /// Connects.
    pub async fn open(settings: RedisSettings, seams: Seams) -> Result<Self> {
        let link = Link::open(settings, seams.clock.clone()).await?;
        let is_durable = persistence::check(&link).await?;
        let store = Store::new(link, seams, is_durable);
        let ledger = Arc::new(RedisLedger::new(store.clone()));
        Ok(Self { store, producer: Arc::default(), ledger })
    }

    /// Returns the capabilities with these settings, on a server with or without persistence.
    pub fn declared(settings: &RedisSettings, is_durable: bool) -> Capabilities {
        Capabilities {
            delay: Duration::MAX,
            resolution: Duration::from_millis(1),
            delay_control: true,
            release: true,
            atomic_move: AtomicMove::WithinTopic,
            lease: Lease::Timed { max: None },
            counts_deliveries: true,
            counts_releases: false,
            key_order: false,
            remembers_ids: true,
            fan_out: true,
            durable: is_durable,
            ledger: settings.ledger,
            inbox: true,
            max_body: settings.max_body,
        }
    }
}

impl Transport for Redis {
    fn capabilities(&self) -> Capabilities {
        Self::declared(&self.store.link.settings, self.store.is_durable)
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(provision::provision(&self.store, topics, subscriptions, on_missing))
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        let producer = self.store.open().map(|()| {
            let producer = self.producer.get_or_init(|| Arc::new(RedisProducer::new(self.store.clone())));
            producer.clone() as Arc<dyn Producer>
        });
        dwell_core::ready(producer)
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        Box::pin(async move { Ok(RedisConsumer::open(self.store.clone(), of).await? as Arc<dyn Consumer>) })
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        Some(Arc::new(RedisScheduler(self.store.clone())))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        let has_ledger = self.store.link.settings.ledger;
        has_ledger.then(|| self.ledger.clone() as Arc<dyn Ledger>)
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        Some(Arc::new(RedisInbox(self.store.clone())))
    }

    /// Promotes due messages of topics without consumers, and removes expired data. `None` if a
    /// separate promoter does this.
    fn background(&self, stop: BoxFuture<'static, ()>) -> Option<BoxFuture<'static, Result<()>>> {
        match self.store.link.settings.promoter {
            Promoter::Elsewhere => None,
            Promoter::Inside => Some(Box::pin(promoter::look_after(self.store.clone(), stop))),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.store.close())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("settings", &self.store.link.settings).finish_non_exhaustive()
    }
}
