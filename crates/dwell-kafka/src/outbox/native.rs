//! A producer of the library, and the thread that hears what became of what it sends.

use super::sending::{NativeRecord, Report};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, KafkaResult},
    producer::{BaseProducer, Producer as _, ProducerContext},
};
use std::{
    io,
    ops::Deref,
    sync::Arc,
    thread::{self, Thread},
    time::Duration,
};
use tokio::sync::watch;

/// How long one poll lasts while something is on its way. What comes meanwhile is heard at once.
const POLL: Duration = Duration::from_millis(100);
/// How soon anything else is heard, such as that a broker is away.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// A producer, and its thread. The one that the library's wrapper brings along polls all the time, and spins for the last
/// millisecond of each poll: one that has nothing to do would take one part in a hundred of a core.
///
/// The thread ends when it is the only one who has the producer, and takes it along: whoever drops this does not wait for it.
pub(super) struct Native<C: ProducerContext + 'static> {
    // Before the thread: that is woken after this is gone.
    producer: Arc<BaseProducer<C>>,
    poller: Poller,
    /// Closed when the thread ends.
    ended: watch::Receiver<()>,
}

impl<C: ProducerContext<DeliveryOpaque = Box<Report>> + 'static> Native<C> {
    /// `idle` is how long the thread sleeps while nothing is on its way, unless it is woken.
    pub(super) fn open(config: &ClientConfig, context: C, idle: Duration) -> KafkaResult<Self> {
        let producer: Arc<BaseProducer<C>> = Arc::new(config.create_with_context(context)?);
        let (end, ended) = watch::channel(());
        let (of, end) = (producer.clone(), End(end));
        let work = move || {
            // In this order: when the end is told of, the producer and the threads of the library are gone.
            let _end = end;
            let of = of;
            poll(&of, idle);
        };
        let poller = thread::Builder::new().name("kafka producer".to_owned()).spawn(work);
        let no_thread = |error: io::Error| KafkaError::ClientCreation(format!("no thread for it: {error}"));
        let poller = Poller(poller.map_err(no_thread)?.thread().clone());
        Ok(Self { producer, poller, ended })
    }

    /// Gives a record to the library, which may have no room for it.
    #[expect(clippy::result_large_err, reason = "the record comes back")]
    pub(super) fn send<'a>(&self, record: NativeRecord<'a>) -> Result<(), (KafkaError, NativeRecord<'a>)> {
        self.producer.send(record)?;
        self.poller.wake();
        Ok(())
    }

    /// Whether nobody hears any more what becomes of what is sent.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.has_changed().is_err()
    }

    /// Until that is so. Does not keep the producer.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + use<C> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }
}

impl<C: ProducerContext + 'static> Deref for Native<C> {
    type Target = BaseProducer<C>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

struct Poller(Thread);

impl Poller {
    /// What is done before this is seen by the thread, even if it has just looked and is about to sleep.
    fn wake(&self) {
        self.0.unpark();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Dropped when the thread ends, whichever way.
struct End(#[expect(dead_code, reason = "whoever waits is told when it is dropped")] watch::Sender<()>);

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("the thread of a Kafka producer has panicked: what it sent may not be there");
        }
    }
}

fn poll<C: ProducerContext>(producer: &Arc<BaseProducer<C>>, idle: Duration) {
    while Arc::strong_count(producer) > 1 {
        if producer.in_flight_count() > 0 {
            producer.poll(POLL);
        } else {
            producer.poll(Duration::ZERO);
            thread::park_timeout(idle);
        }
    }
}

#[cfg(test)]
mod tests;
