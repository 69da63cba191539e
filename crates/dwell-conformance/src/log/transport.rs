//! A client of the log.

use super::{
    broker::{LogBroker, closed},
    consumer::LogConsumer,
    producer::LogProducer,
};
use dwell_core::{
    BoxFuture, Capabilities, Consumer, OnMissing, Producer, Result, Seams, Subscription, Topic, Transport,
    ready,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Client of a [`LogBroker`].
///
/// ```
/// use dwell_conformance::log::{Log, LogBroker, LogSettings};
/// use dwell_core::{
///     Address, Envelope, Message, OnMissing, Seams, Subscription, Transport, VirtualClock,
/// };
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dwell_core::Result<()> {
/// let broker = LogBroker::new(LogSettings::default());
/// let log = Log::connect(&broker, Seams::virtual_time(VirtualClock::new(), 1))?;
/// let mail = Subscription::new("orders", "mail");
/// log.provision(&[], &[mail.clone()], OnMissing::Create).await?;
/// let consumer = log.consumer(mail).await?;
///
/// let order = Message::new("order-42", "orders.placed", "{}");
/// log.producer().await?.send(&[Envelope::new(Address::topic("orders"), order)]).await.remove(0)?;
/// let batch = consumer.receive(10, Duration::ZERO, None).await?;
/// assert_eq!(&*batch[0].message.id.0, "order-42");
/// # Ok(()) }
/// ```
pub struct Log {
    broker: LogBroker,
    seams: Seams,
    session: Arc<Session>,
    capabilities: Capabilities,
}

/// State that a client's producer and consumers share.
pub(super) struct Session {
    pub(super) number: u64,
    closed: AtomicBool,
}

impl Session {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl Log {
    /// Connects. `Unavailable` if the broker is stopped.
    pub fn connect(broker: &LogBroker, seams: Seams) -> Result<Self> {
        drop(broker.running()?);
        let number = broker.numbers().fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session { number, closed: AtomicBool::new(false) });
        let capabilities =
            Capabilities { key_order: true, max_body: broker.settings().max_body, ..Capabilities::LEAST };
        Ok(Self { broker: broker.clone(), seams, session, capabilities })
    }

    /// Session number of this client, for [`LogBroker::drop_session`].
    pub fn session(&self) -> u64 {
        self.session.number
    }

    fn open(&self) -> Result<()> {
        if self.session.is_closed() { Err(closed()) } else { Ok(()) }
    }
}

impl Transport for Log {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn provision<'a>(
        &'a self,
        topics: &'a [Topic],
        subscriptions: &'a [Subscription],
        on_missing: OnMissing,
    ) -> BoxFuture<'a, Result<()>> {
        ready(self.open().and_then(|()| self.broker.provision(topics, subscriptions, on_missing)))
    }

    fn producer(&self) -> BoxFuture<'_, Result<Arc<dyn Producer>>> {
        ready(self.open().map(|()| {
            Arc::new(LogProducer {
                broker: self.broker.clone(),
                clock: self.seams.clock.clone(),
                session: self.session.clone(),
                capabilities: self.capabilities,
            }) as Arc<dyn Producer>
        }))
    }

    fn consumer(&self, of: Subscription) -> BoxFuture<'_, Result<Arc<dyn Consumer>>> {
        ready(self.open().and_then(|()| {
            let clock = self.seams.clock.clone();
            let consumer = LogConsumer::join(self.broker.clone(), clock, self.session.clone(), of)?;
            Ok(Arc::new(consumer) as Arc<dyn Consumer>)
        }))
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.session.closed.store(true, Ordering::SeqCst);
        self.broker.drop_session(self.session.number);
        ready(Ok(()))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("session", &self.session.number).field("broker", &self.broker).finish()
    }
}
