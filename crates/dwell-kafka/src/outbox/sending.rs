//! Records in flight, and the outcome of each.

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

/// How often an unconfirmed record is sent again.
const AGAIN: usize = 3;
/// Offset that librdkafka reports when no broker returned one (`RD_KAFKA_OFFSET_INVALID`).
const NOWHERE: i64 = -1001;

pub(super) type NativeRecord<'a> = BaseRecord<'a, [u8], [u8], Box<Report>>;
/// What librdkafka reports about one record.
pub(super) type Reported = Result<Option<Timestamp>, Unsent>;
/// When a record was appended, where the topic keeps that time.
pub(crate) type Confirmed = Result<Option<Timestamp>>;

/// Why a record may not be stored.
pub(super) enum Unsent {
    Refused(KafkaError),
    /// librdkafka takes the record for stored, because a later record is. But a broker that does
    /// not know a producer accepts any sequence number first: if it refused one batch because it
    /// was not the leader yet, and accepted the next, then the first batch is not stored. Only a
    /// response with an offset shows that a record is stored.
    ///
    /// Or the record is not stored because its batch contained a record that the broker will never
    /// accept.
    Unconfirmed(Box<OwnedMessage>),
    /// It was refused because its batch was too large. Send it alone to find out whether it is too
    /// large itself.
    TooLargeABatch(Box<OwnedMessage>),
    /// It was purged before it was sent.
    Purged,
    /// The thread that receives reports has ended.
    Unheard,
}

/// Source of the error for a record that was purged before it was sent.
#[derive(Debug)]
struct Purged;

impl fmt::Display for Purged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it was purged before it was sent")
    }
}

impl std::error::Error for Purged {}

/// Returns whether an error only means that a record was purged before it was sent.
pub(crate) fn is_purged(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Purged>())
}

/// Returns the error for a purged record. The sender retries: the record is stored nowhere.
fn purged(topic: &str) -> Error {
    let text = format!("no broker accepted a record for `{topic}` in time: send it again");
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

/// Receives the delivery reports.
pub(super) struct Reports {
    trouble: Trouble,
    pub(super) traffic: Traffic,
    /// Whether batches may have several records.
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

/// Records in flight.
pub(crate) struct Sending<'a> {
    outbox: &'a Outbox,
    native: Arc<Native>,
    batch: Arc<Batch>,
    /// The topic of each record.
    topics: Vec<Text>,
}

impl<'a> Sending<'a> {
    /// Starts an empty set for this number of records.
    pub(super) fn new(outbox: &'a Outbox, native: Arc<Native>, count: usize) -> Self {
        Self { outbox, native, batch: Batch::new(), topics: Vec::with_capacity(count) }
    }

    pub(crate) async fn hand_over(&mut self, record: &Outgoing) {
        let report = self.report(&record.topic);
        self.outbox.hand_over(&self.native, record.native(report)).await;
    }

    /// Hands over a message that goes to a topic directly.
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

    /// Waits until the broker has confirmed or refused each record. Returns one answer per record,
    /// in order.
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

    /// Sends unconfirmed records again: a duplicate is better than a loss. Returns their number.
    async fn send_unconfirmed(&self, reports: &mut [Reported]) -> usize {
        let count = self.outbox.send_again(&self.native, reports, unconfirmed).await;
        if count > 0 {
            tracing::warn!(count, "records were not confirmed by a broker; sent again");
        }
        count
    }

    /// Sends records whose batch was too large again, each in a batch of its own. Returns their
    /// number.
    async fn send_alone(&self, reports: &mut [Reported]) -> usize {
        let Some(alone) = &self.outbox.alone else { return 0 };
        if reports.iter().all(|report| of_its_batch(report).is_none()) {
            return 0;
        }
        // An outbox that was closed in the meantime sends no more.
        let Ok(native) = alone.native() else { return 0 };
        let count = alone.send_again(&native, reports, of_its_batch).await;
        tracing::debug!(count, "batches were too large for their topic; sent their records one by one");
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
    /// Waits for this number of reports. Replaces the producer if it does not recover.
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
        // No record of this producer was confirmed since: it may have removed its last broker.
        let is_timeout =
            |report: &Reported| matches!(report, Err(Unsent::Refused(error)) if is_timeout(error));
        let is_lost = reports.iter().any(is_timeout)
            && native.context().traffic.unconfirmed() >= self.settings.send_timeout;
        if native.has_ended() || is_lost || reports.iter().any(is_fatal) {
            self.renew(native);
        }
        reports
    }

    /// Sends the selected records once more to the same partitions, and waits. Returns their
    /// number.
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

/// The records of one send and their outcomes, which are awaited together.
pub(super) struct Batch {
    /// Outcomes other than a plain confirmation, by index.
    said: Mutex<Vec<(usize, Reported)>>,
    heard: AtomicUsize,
    /// Number of records to wait for, once it is known.
    wanted: AtomicUsize,
    done: Notify,
}

impl Batch {
    pub(super) fn new() -> Arc<Self> {
        let (said, heard) = Default::default();
        Arc::new(Self { said, heard, wanted: AtomicUsize::new(usize::MAX), done: Notify::new() })
    }

    /// Waits until this number of records was reported, or no more reports will arrive. In the
    /// latter case the records without a report count as not stored.
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
        // Most records are confirmed without a timestamp.
        if !matches!(result, Ok(None)) {
            lock(said).push((self.index, result));
        }
        if heard.fetch_add(1, Ordering::SeqCst) + 1 >= wanted.load(Ordering::SeqCst) {
            // A waiter that has checked the count and not yet awaited is notified as well.
            done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the pump would take a purged copy for a delivery that another worker has, and drop
    /// its settlement.
    #[test]
    fn a_purged_record_is_retryable() {
        let error = purged("orders");
        assert!(is_purged(&error) && error.is_retryable() && !error.is_doubtful(), "{error}");
        assert!(!is_purged(&Error::new(ErrorKind::Unavailable, "no broker")));
    }
}
