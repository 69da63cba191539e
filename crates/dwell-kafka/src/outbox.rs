//! Sending records: many at a time, and each one confirmed by all replicas.

use crate::{fault::fault, record::Outgoing, settings::KafkaSettings, trouble::Trouble};
use dwell_core::{Clock, Error, ErrorKind, Result, Timestamp};
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{DeliveryResult, Message as _, Timestamp as Stamp},
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How long to wait while the library has no room for more.
const ROOM: Duration = Duration::from_millis(2);
/// How long a close waits for what is on its way.
const FLUSH: Duration = Duration::from_secs(10);

type Native = ThreadedProducer<Reports>;
/// What the library says of one record.
type Reported = Result<Option<Timestamp>, KafkaError>;
/// When it was appended, where the topic keeps that time.
pub(crate) type Confirmed = Result<Option<Timestamp>>;

/// Sends records. Idempotent, so that a repetition by the library makes no second one, and so that order is kept.
pub(crate) struct Outbox {
    settings: KafkaSettings,
    client_id: String,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// Opened on first use, and again after an error that the library cannot recover from.
enum State {
    Unopened,
    Open(Arc<Native>),
    Closed,
}

impl Outbox {
    pub(crate) fn new(settings: KafkaSettings, client_id: String, clock: Arc<dyn Clock>) -> Self {
        Self { settings, client_id, clock, state: Mutex::new(State::Unopened) }
    }

    /// Sends, and waits until the broker has confirmed or refused each: one answer per record, in order.
    pub(crate) async fn send(&self, records: &[Outgoing]) -> Vec<Confirmed> {
        let native = match self.native() {
            Ok(native) => native,
            Err(error) => return records.iter().map(|_| Err(error.again())).collect(),
        };
        let batch = Batch::new(records.len());
        for (index, record) in records.iter().enumerate() {
            self.hand_over(&native, record, Report { batch: batch.clone(), index }).await;
        }
        batch.wait().await;
        let reports = std::mem::take(&mut *lock(&batch.reports));
        let mut fatal = false;
        let answers = records.iter().zip(reports).map(|(record, report)| match report {
            Some(Ok(at)) => Ok(at),
            Some(Err(error)) => {
                fatal |= error.rdkafka_error_code() == Some(Code::Fatal);
                Err(fault(&format!("send to `{}`", record.topic), error))
            }
            None => {
                Err(Error::new(ErrorKind::Timeout, "Kafka did not confirm: it may or may not have happened"))
            }
        });
        let answers = answers.collect();
        if fatal {
            self.renew(&native);
        }
        answers
    }

    /// Waits for what is on its way, and sends no more. Idempotent.
    pub(crate) async fn close(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Closed);
        if let State::Open(native) = before {
            let closed = tokio::task::spawn_blocking(move || {
                if let Err(error) = native.flush(FLUSH) {
                    tracing::warn!(%error, "records were still on their way to Kafka when the producer was closed");
                }
            });
            let _ = closed.await;
        }
    }

    /// Gives a record to the library, waiting while it has no room.
    async fn hand_over(&self, native: &Native, record: &Outgoing, report: Report) {
        let mut outgoing = BaseRecord::with_opaque_to(&record.topic, Box::new(report));
        outgoing.key = record.key.as_deref();
        outgoing.payload = record.body.as_deref();
        outgoing.headers = Some(record.native_headers());
        loop {
            match native.send(outgoing) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                    outgoing = back;
                    self.clock.sleep(ROOM).await;
                }
                Err((error, back)) => return back.delivery_opaque.say(Err(error)),
            }
        }
    }

    fn native(&self) -> Result<Arc<Native>> {
        let mut state = lock(&self.state);
        match &*state {
            State::Open(native) => Ok(native.clone()),
            State::Closed => {
                Err(Error::new(ErrorKind::Closed, "this connection to Kafka was closed: connect again"))
            }
            State::Unopened => {
                let native = Arc::new(self.open()?);
                *state = State::Open(native.clone());
                Ok(native)
            }
        }
    }

    fn open(&self) -> Result<Native> {
        let mut config = self.settings.client(&self.client_id);
        config.set("enable.idempotence", "true").set("acks", "all");
        config.set("message.timeout.ms", self.settings.send_timeout.as_millis().to_string());
        config.set("linger.ms", "1").set("batch.num.messages", "10000");
        config.set("queue.buffering.max.messages", "100000");
        // The one that clients in Java have: a key is in the same partition whoever sends it.
        config.set("partitioner", "murmur2_random");
        // A topic that is not there is known not to be before anything is sent to it.
        config.set("topic.metadata.propagation.max.ms", "10000");
        let config = self.settings.finish(config);
        config
            .create_with_context(Reports(Trouble::default()))
            .map_err(|error| fault("open a producer", error))
    }

    /// After a fatal error the library refuses everything: the next send opens another producer.
    fn renew(&self, broken: &Arc<Native>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Open(native) if Arc::ptr_eq(native, broken)) {
            tracing::warn!("the Kafka producer is beyond repair: opening another one");
            *state = State::Unopened;
        }
    }
}

/// Hears what became of each record.
struct Reports(Trouble);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.0.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Box<Report>) {
        report.say(match result {
            Ok(message) => Ok(match message.timestamp() {
                Stamp::LogAppendTime(at) => Some(Timestamp(at)),
                _ => None,
            }),
            Err((error, _)) => Err(error.clone()),
        });
    }
}

/// The records of one send, and what became of them: counted, and waited for together.
struct Batch {
    reports: Mutex<Vec<Option<Reported>>>,
    left: AtomicUsize,
    done: Notify,
}

impl Batch {
    fn new(count: usize) -> Arc<Self> {
        let reports = Mutex::new((0..count).map(|_| None).collect());
        Arc::new(Self { reports, left: AtomicUsize::new(count), done: Notify::new() })
    }

    async fn wait(&self) {
        while self.left.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
    }
}

/// One record of a batch.
struct Report {
    batch: Arc<Batch>,
    index: usize,
}

impl Report {
    fn say(&self, result: Reported) {
        lock(&self.batch.reports)[self.index] = Some(result);
        if self.batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Keeps for a waiter that has looked and not yet gone to sleep.
            self.batch.done.notify_one();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
