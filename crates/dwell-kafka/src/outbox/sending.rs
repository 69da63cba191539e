//! Records on their way, and what becomes of each.

use super::{Native, Outbox, lock, traffic::Traffic, transactions::is_timeout};
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
    producer::{BaseRecord, Producer as _, ProducerContext},
};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
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
    /// It was refused for the size of the batch that it was in: whether it is too large itself, it has to be sent alone to know.
    TooLargeABatch(Box<OwnedMessage>),
    /// It was purged before it was sent.
    Purged,
    /// Whoever hears of it has ended.
    Unheard,
}

/// The source of the error for a record that was purged before it was sent.
#[derive(Debug)]
struct Purged;

impl fmt::Display for Purged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it was purged before it was sent")
    }
}

impl std::error::Error for Purged {}

/// Whether an error only says that a record was purged before it was sent.
pub(crate) fn is_purged(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Purged>())
}

/// The answer for a record that was purged. The sender tries again: nobody has taken the record.
fn purged(topic: &str) -> Error {
    let text = format!("no broker took a record for `{topic}` in time: send it again");
    Error::new(ErrorKind::Unavailable, text).with_doubt(false).with_source(Purged)
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
pub(super) struct Reports {
    trouble: Trouble,
    pub(super) traffic: Traffic,
    /// A batch may be of several records.
    in_batches: bool,
}

impl Reports {
    pub(super) fn new(trouble: Trouble, traffic: Traffic, in_batches: bool) -> Self {
        Self { trouble, traffic, in_batches }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.trouble.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.trouble.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Box<Report>) {
        self.traffic.ends(result.is_ok());
        report.say(match result {
            Ok(message) if message.offset() == NOWHERE => {
                Err(Unsent::Unconfirmed(Box::new(message.detach())))
            }
            Ok(message) => Ok(match message.timestamp() {
                Stamp::LogAppendTime(at) => Some(Timestamp(at)),
                _ => None,
            }),
            Err((error, message)) => Err(match error.rdkafka_error_code() {
                Some(Code::InvalidDifferentRecord) => Unsent::Unconfirmed(Box::new(message.detach())),
                Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) if self.in_batches => {
                    Unsent::TooLargeABatch(Box::new(message.detach()))
                }
                Some(Code::PurgeQueue) => Unsent::Purged,
                _ => Unsent::Refused(error.clone()),
            }),
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
        let mut reports = self.outbox.hear(&self.native, &self.batch, self.topics.len()).await;
        for _ in 0..AGAIN {
            let unconfirmed = self.send_unconfirmed(&mut reports).await;
            if self.send_alone(&mut reports).await + unconfirmed == 0 {
                break;
            }
        }
        let answers = reports.into_iter().zip(&self.topics).map(|(report, topic)| {
            report.map_err(|unsent| match unsent {
                Unsent::Refused(error) => refused(topic, error),
                Unsent::Purged => purged(topic),
                Unsent::Unconfirmed(_) | Unsent::TooLargeABatch(_) | Unsent::Unheard => {
                    let text = format!("no broker confirmed a record for `{topic}`: send it again");
                    Error::new(ErrorKind::Timeout, text)
                }
            })
        });
        answers.collect()
    }

    /// Sends again what nobody confirmed: better twice than not at all. How many those were.
    async fn send_unconfirmed(&self, reports: &mut [Reported]) -> usize {
        let count = self.outbox.send_again(&self.native, reports, unconfirmed).await;
        if count > 0 {
            tracing::warn!(count, "records that no broker confirmed were sent to Kafka again");
        }
        count
    }

    /// Sends those again, each by itself, whose batch was too large. How many those were.
    async fn send_alone(&self, reports: &mut [Reported]) -> usize {
        let Some(alone) = &self.outbox.alone else { return 0 };
        if reports.iter().all(|report| of_its_batch(report).is_none()) {
            return 0;
        }
        // One that was closed meanwhile sends no more.
        let Ok(native) = alone.native() else { return 0 };
        let count = alone.send_again(&native, reports, of_its_batch).await;
        tracing::debug!(
            count,
            "records whose batch was too large for their topic were sent to Kafka one by one"
        );
        count
    }
}

fn unconfirmed(report: &Reported) -> Option<&OwnedMessage> {
    match report {
        Err(Unsent::Unconfirmed(message)) => Some(message),
        _ => None,
    }
}

pub(super) fn of_its_batch(report: &Reported) -> Option<&OwnedMessage> {
    match report {
        Err(Unsent::TooLargeABatch(message)) => Some(message),
        _ => None,
    }
}

impl Outbox {
    /// Until so many were reported. A producer that is of no more use is given up.
    async fn hear(&self, native: &Arc<Native>, batch: &Batch, count: usize) -> Vec<Reported> {
        let reports = tokio::select! {
            biased;
            reports = batch.wait(count, native.ended()) => reports,
            () = self.watch(native) => vec![],
        };
        let is_fatal = |report: &Reported| match report {
            Err(Unsent::Refused(error)) => error.rdkafka_error_code() == Some(Code::Fatal),
            _ => false,
        };
        // Every record of this producer has timed out since then: it may have lost its last broker for good.
        let is_timeout =
            |report: &Reported| matches!(report, Err(Unsent::Refused(error)) if is_timeout(error));
        let is_lost = reports.iter().any(is_timeout)
            && native.context().traffic.unconfirmed() >= self.settings.send_timeout;
        if native.has_ended() || is_lost || reports.iter().any(is_fatal) {
            self.renew(native);
        }
        reports
    }

    /// Sends these once more, to where they were for, and waits. How many there were.
    async fn send_again(
        &self,
        native: &Arc<Native>,
        reports: &mut [Reported],
        these: impl Fn(&Reported) -> Option<&OwnedMessage>,
    ) -> usize {
        let (batch, mut places) = (Batch::new(), vec![]);
        for (place, report) in reports.iter().enumerate() {
            let Some(message) = these(report) else { continue };
            let report = Box::new(Report { batch: batch.clone(), index: places.len() });
            let mut record =
                BaseRecord::with_opaque_to(message.topic(), report).partition(message.partition());
            (record.key, record.payload) = (message.key(), message.payload());
            record.headers = message.headers().cloned();
            places.push(place);
            self.hand_over(native, record).await;
        }
        let count = places.len();
        if count > 0 {
            let heard = self.hear(native, &batch, count).await;
            places.into_iter().zip(heard).for_each(|(place, report)| reports[place] = report);
        }
        count
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the pump would take a purged copy for a delivery that another worker has, and drop its settlement.
    #[test]
    fn a_purged_record_is_sent_again() {
        let error = purged("orders");
        assert!(is_purged(&error) && error.is_retryable() && !error.is_doubtful(), "{error}");
        assert!(!is_purged(&Error::new(ErrorKind::Unavailable, "no broker")));
    }
}
