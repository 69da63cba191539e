//! A producer of librdkafka, and the thread that polls its delivery reports.

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

/// Timeout of one poll while records are in flight. An event ends the poll at once.
const POLL: Duration = Duration::from_millis(100);
/// How soon other events are handled, such as an unavailable broker.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// A producer and its thread. The thread of rdkafka's own wrapper polls all the time and spins for
/// the last millisecond of each poll, which costs about 1 % of a core while nothing is sent.
///
/// The thread ends when it holds the last reference to the producer, and drops it. Dropping this
/// value does not wait for that.
pub(super) struct Native<C: ProducerContext + 'static> {
    // Declared before the thread handle, which wakes the thread once this reference is gone.
    producer: Arc<BaseProducer<C>>,
    poller: Poller,
    /// Closed when the thread ends.
    ended: watch::Receiver<()>,
}

impl<C: ProducerContext<DeliveryOpaque = Box<Report>> + 'static> Native<C> {
    /// Opens a producer. `idle` is how long the thread sleeps while no record is in flight, unless
    /// it is woken.
    pub(super) fn open(config: &ClientConfig, context: C, idle: Duration) -> KafkaResult<Self> {
        let producer: Arc<BaseProducer<C>> = Arc::new(config.create_with_context(context)?);
        let (end, ended) = watch::channel(());
        let (of, end) = (producer.clone(), End(end));
        let work = move || {
            // Dropped in reverse order: when `end` is dropped, the producer and its threads are
            // gone.
            let _end = end;
            let of = of;
            poll(&of, idle);
        };
        let poller = thread::Builder::new().name("kafka producer".to_owned()).spawn(work);
        let no_thread = |error: io::Error| {
            KafkaError::ClientCreation(format!("its thread could not be started: {error}"))
        };
        let poller = Poller(poller.map_err(no_thread)?.thread().clone());
        Ok(Self { producer, poller, ended })
    }

    /// Gives a record to librdkafka, whose queue may be full.
    #[expect(clippy::result_large_err, reason = "the record is returned to the caller")]
    pub(super) fn send<'a>(&self, record: NativeRecord<'a>) -> Result<(), (KafkaError, NativeRecord<'a>)> {
        self.producer.send(record)?;
        self.poller.wake();
        Ok(())
    }

    /// Returns whether the thread has ended, so that no more reports arrive.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.has_changed().is_err()
    }

    /// Completes when the thread has ended. The future does not keep the producer.
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
    /// Wakes the thread. It sees everything done before, even if it was about to sleep.
    fn wake(&self) {
        self.0.unpark();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Dropped when the thread ends, also by a panic.
struct End(#[expect(dead_code, reason = "dropping it notifies the receivers")] watch::Sender<()>);

impl Drop for End {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("thread of a Kafka producer panicked; unconfirmed records may be lost");
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
