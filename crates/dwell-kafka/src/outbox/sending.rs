//! Records on their way, and what becomes of each.

use super::{Native, Outbox, lock};
use crate::{
    fault::fault,
    record::{Outgoing, native_headers},
    trouble::Trouble,
};
use dwell_core::{Error, ErrorKind, Message, Result, Text, Timestamp};
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{DeliveryResult, Message as _, OwnedMessage, Timestamp as Stamp},
    producer::{BaseRecord, ProducerContext},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Notify;

/// How often a record is sent again that nobody confirmed.
const AGAIN: usize = 3;
/// What the library says of where a record lies when no broker told it (its `RD_KAFKA_OFFSET_INVALID`).
const NOWHERE: i64 = -1001;

pub(super) type NativeRecord<'a> = BaseRecord<'a, [u8], [u8], Box<Report>>;
/// What the library says of one record.
pub(super) type Reported = Result<Option<Timestamp>, Unsent>;
/// When it was appended, where the topic keeps that time.
pub(crate) type Confirmed = Result<Option<Timestamp>>;

/// Why a record may not be there.
pub(super) enum Unsent {
    Refused(KafkaError),
    /// The library believes that it is there, because one that was sent after it is. But a broker that has never heard from
    /// a producer begins with whatever comes first: where it refused one batch, since it was not yet the leader, and took
    /// the next, the first is nowhere. Only an answer with an offset says that a record is stored.
    ///
    /// Or it is nowhere because of another record in its batch, which the broker will never take.
    Unconfirmed(Box<OwnedMessage>),
    /// Whoever hears of it has ended.
    Unheard,
}

pub(super) fn refused(topic: &str, error: KafkaError) -> Error {
    fault(&format!("send to `{topic}`"), error)
}

impl Outgoing {
    pub(super) fn native(&self, report: Box<Report>) -> NativeRecord<'_> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, report);
        (record.key, record.payload) = (self.key.as_deref(), self.body.as_deref());
        record.headers = Some(self.headers.native());
        record
    }
}

/// Hears what became of each record.
pub(super) struct Reports(Trouble);

impl Reports {
    pub(super) fn new(trouble: Trouble) -> Self {
        Self(trouble)
    }
}

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
            Ok(message) if message.offset() == NOWHERE => {
                Err(Unsent::Unconfirmed(Box::new(message.detach())))
            }
            Ok(message) => Ok(match message.timestamp() {
                Stamp::LogAppendTime(at) => Some(Timestamp(at)),
                _ => None,
            }),
            Err((error, message)) if error.rdkafka_error_code() == Some(Code::InvalidDifferentRecord) => {
                Err(Unsent::Unconfirmed(Box::new(message.detach())))
            }
            Err((error, _)) => Err(Unsent::Refused(error.clone())),
        });
    }
}

/// Records on their way.
pub(crate) struct Sending<'a> {
    outbox: &'a Outbox,
    native: Arc<Native>,
    batch: Arc<Batch>,
    /// Where each goes.
    topics: Vec<Text>,
}

impl<'a> Sending<'a> {
    /// None yet, of so many.
    pub(super) fn new(outbox: &'a Outbox, native: Arc<Native>, count: usize) -> Self {
        Self { outbox, native, batch: Batch::new(), topics: Vec::with_capacity(count) }
    }

    pub(crate) async fn hand_over(&mut self, record: &Outgoing) {
        let report = self.report(&record.topic);
        self.outbox.hand_over(&self.native, record.native(report)).await;
    }

    /// A message as it is.
    pub(crate) async fn hand_over_message(&mut self, message: &Message, topic: &Text) {
        let mut record = BaseRecord::with_opaque_to(topic, self.report(topic));
        (record.key, record.payload) = (message.key.as_deref(), Some(&message.body[..]));
        record.headers = Some(native_headers(message));
        self.outbox.hand_over(&self.native, record).await;
    }

    fn report(&mut self, topic: &Text) -> Box<Report> {
        self.topics.push(topic.clone());
        Box::new(Report { batch: self.batch.clone(), index: self.topics.len() - 1 })
    }

    /// Until the broker has confirmed or refused each: one answer per record, in order.
    pub(crate) async fn wait(self) -> Vec<Confirmed> {
        let mut reports = self.batch.wait(self.topics.len(), self.native.ended()).await;
        for _ in 0..AGAIN {
            if !self.send_unconfirmed(&mut reports).await {
                break;
            }
        }
        let mut fatal = self.native.has_ended();
        let answers = reports.into_iter().zip(&self.topics).map(|(report, topic)| {
            report.map_err(|unsent| match unsent {
                Unsent::Refused(error) => {
                    fatal |= error.rdkafka_error_code() == Some(Code::Fatal);
                    refused(topic, error)
                }
                Unsent::Unconfirmed(_) | Unsent::Unheard => {
                    let text = format!("no broker confirmed a record for `{topic}`: send it again");
                    Error::new(ErrorKind::Timeout, text)
                }
            })
        });
        let answers = answers.collect();
        if fatal {
            self.outbox.renew(&self.native);
        }
        answers
    }

    /// Sends again what nobody confirmed: better twice than not at all. Whether there was any.
    async fn send_unconfirmed(&self, reports: &mut [Reported]) -> bool {
        let (batch, mut places) = (Batch::new(), vec![]);
        for (place, report) in reports.iter().enumerate() {
            let Err(Unsent::Unconfirmed(message)) = report else { continue };
            let report = Box::new(Report { batch: batch.clone(), index: places.len() });
            let mut record =
                BaseRecord::with_opaque_to(message.topic(), report).partition(message.partition());
            (record.key, record.payload) = (message.key(), message.payload());
            record.headers = message.headers().cloned();
            places.push(place);
            self.outbox.hand_over(&self.native, record).await;
        }
        let count = places.len();
        if count > 0 {
            tracing::warn!(count, "records that no broker confirmed are sent to Kafka again");
        }
        for (place, report) in places.into_iter().zip(batch.wait(count, self.native.ended()).await) {
            reports[place] = report;
        }
        count > 0
    }
}

/// The records of one send, and what became of them: counted, and waited for together.
pub(super) struct Batch {
    /// What there is to say but that a record was confirmed, by its index.
    said: Mutex<Vec<(usize, Reported)>>,
    heard: AtomicUsize,
    /// How many are waited for, once that is known.
    wanted: AtomicUsize,
    done: Notify,
}

impl Batch {
    pub(super) fn new() -> Arc<Self> {
        let (said, heard) = Default::default();
        Arc::new(Self { said, heard, wanted: AtomicUsize::new(usize::MAX), done: Notify::new() })
    }

    /// Until so many were reported, or nobody will report any more: what is not known to be there is then not.
    pub(super) async fn wait(&self, count: usize, ended: impl Future<Output = ()>) -> Vec<Reported> {
        self.wanted.store(count, Ordering::SeqCst);
        let all = async {
            while self.heard.load(Ordering::SeqCst) < count {
                self.done.notified().await;
            }
        };
        let is_known = tokio::select! {
            biased;
            () = all => true,
            () = ended => false,
        };
        let unsaid = || if is_known { Ok(None) } else { Err(Unsent::Unheard) };
        let mut reports: Vec<_> = (0..count).map(|_| unsaid()).collect();
        for (index, report) in lock(&self.said).drain(..) {
            reports[index] = report;
        }
        reports
    }
}

/// One record of a batch.
pub(super) struct Report {
    pub(super) batch: Arc<Batch>,
    pub(super) index: usize,
}

impl Report {
    pub(super) fn say(&self, result: Reported) {
        let Batch { said, heard, wanted, done } = &*self.batch;
        // Mostly there is nothing to add.
        if !matches!(result, Ok(None)) {
            lock(said).push((self.index, result));
        }
        if heard.fetch_add(1, Ordering::SeqCst) + 1 >= wanted.load(Ordering::SeqCst) {
            // Keeps for a waiter that has looked and not yet gone to sleep.
            done.notify_one();
        }
    }
}
