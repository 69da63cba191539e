//! A producer of the library, and the thread that hears what became of what it sends.

use super::sending::{NativeRecord, Reports};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, KafkaResult},
    producer::{BaseProducer, Producer as _},
};
use std::{
    io,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// How long one poll lasts while something is on its way. What comes meanwhile is heard at once.
const POLL: Duration = Duration::from_millis(100);
/// How soon anything else is heard, such as that a broker is away.
const IDLE: Duration = Duration::from_secs(1);

/// A producer, and its thread. The one that the library's wrapper brings along polls all the time, and spins for the last
/// millisecond of each poll: one that has nothing to do would take one part in a hundred of a core.
pub(super) struct Native {
    producer: Arc<BaseProducer<Reports>>,
    stop: Arc<AtomicBool>,
    poller: Option<JoinHandle<()>>,
}

impl Native {
    pub(super) fn open(config: &ClientConfig, reports: Reports) -> KafkaResult<Self> {
        let producer: Arc<BaseProducer<Reports>> = Arc::new(config.create_with_context(reports)?);
        let stop = Arc::new(AtomicBool::new(false));
        let (of, until) = (producer.clone(), stop.clone());
        let poller =
            thread::Builder::new().name("kafka producer".to_owned()).spawn(move || poll(&of, &until));
        let no_thread = |error: io::Error| KafkaError::ClientCreation(format!("no thread for it: {error}"));
        Ok(Self { producer, stop, poller: Some(poller.map_err(no_thread)?) })
    }

    /// Gives a record to the library, which may have no room for it.
    #[expect(clippy::result_large_err, reason = "the record comes back")]
    pub(super) fn send<'a>(&self, record: NativeRecord<'a>) -> Result<(), (KafkaError, NativeRecord<'a>)> {
        self.producer.send(record)?;
        self.wake();
        Ok(())
    }

    /// What is done after this is seen by the thread, even if it has just looked and is about to sleep.
    fn wake(&self) {
        self.poller.iter().for_each(|poller| poller.thread().unpark());
    }
}

impl Deref for Native {
    type Target = BaseProducer<Reports>;

    fn deref(&self) -> &Self::Target {
        &self.producer
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
        if self.poller.take().is_some_and(|poller| poller.join().is_err()) {
            tracing::error!("a thread of a Kafka producer has panicked");
        }
    }
}

fn poll(producer: &BaseProducer<Reports>, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        if producer.in_flight_count() > 0 {
            producer.poll(POLL);
        } else {
            producer.poll(Duration::ZERO);
            thread::park_timeout(IDLE);
        }
    }
}
