//! Sending records: many at a time, and each one confirmed by all replicas.

use crate::{
    fault::fault,
    group::Offsets,
    record::{Outgoing, native_headers},
    settings::KafkaSettings,
    trouble::Trouble,
};
use dwell_core::{Clock, Error, ErrorKind, Message, Result, Text, Timestamp};
use rdkafka::{
    ClientConfig, ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{DeliveryResult, Message as _, OwnedMessage, Timestamp as Stamp},
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// How long to wait while the library has no room for more.
const ROOM: Duration = Duration::from_millis(2);
/// How long one call about a transaction waits before it says so; it is then made again.
const CALL: Duration = Duration::from_secs(5);
/// How long a close waits for what is on its way.
const FLUSH: Duration = Duration::from_secs(10);
/// How often a record is sent again that nobody confirmed.
const AGAIN: usize = 3;
/// What the library says of where a record lies when no broker told it (its `RD_KAFKA_OFFSET_INVALID`).
const NOWHERE: i64 = -1001;
/// How many bytes are sent as one batch, where the broker allows as much.
const BATCH: usize = 1_000_000;

/// How many names for transactions this process has used. None is used again, not by a relay that starts again either: a
/// broker may still be at work on what was begun under it.
static NAMES: AtomicUsize = AtomicUsize::new(0);

type Native = ThreadedProducer<Reports>;
type NativeRecord<'a> = BaseRecord<'a, [u8], [u8], Box<Report>>;
/// What the library says of one record.
type Reported = Result<Option<Timestamp>, Unsent>;
/// When it was appended, where the topic keeps that time.
pub(crate) type Confirmed = Result<Option<Timestamp>>;

/// Sends records. Idempotent, so that a repetition by the library makes no second one, and so that order is kept.
pub(crate) struct Outbox {
    settings: KafkaSettings,
    client_id: String,
    clock: Arc<dyn Clock>,
    transactions: Option<Transactions>,
    /// The largest record that it hands to the broker, if that is not `max_record`.
    largest: Option<usize>,
    /// What tells its transactions from all others of this process: see [`Self::rename`].
    name: AtomicUsize,
    state: Mutex<State>,
    /// It is about to be closed: no call is waited for that a broker may never answer.
    closing: Arc<AtomicBool>,
}

/// That it sends within transactions alone.
#[derive(Clone, Debug)]
pub(crate) struct Transactions {
    /// Nobody else's.
    pub(crate) id: String,
    /// When the broker gives up one whose owner is gone.
    pub(crate) timeout: Duration,
}

/// How a transaction ended, if that is known.
pub(crate) enum Transaction {
    /// All are there, and so are the offsets.
    Committed,
    /// Nothing is there: some records were refused, for these reasons; the others have none.
    Refused(Vec<Option<Error>>),
    /// Nothing is there, for a reason that lies in no record.
    Undone(Error),
}

/// Why a record may not be there.
enum Unsent {
    Refused(KafkaError),
    /// The library believes that it is there, because one that was sent after it is. But a broker that has never heard from
    /// a producer begins with whatever comes first: where it refused one batch, since it was not yet the leader, and took
    /// the next, the first is nowhere. Only an answer with an offset says that a record is stored.
    ///
    /// Or it is nowhere because of another record in its batch, which the broker will never take.
    Unconfirmed(Box<OwnedMessage>),
}

/// Opened on first use, and again after an error that the library cannot recover from.
enum State {
    Unopened,
    Open(Arc<Native>),
    Closed,
}

impl Outbox {
    pub(crate) fn new(settings: KafkaSettings, client_id: String, clock: Arc<dyn Clock>) -> Self {
        let (state, closing) = (Mutex::new(State::Unopened), Arc::default());
        let (transactions, largest, name) = (None, None, AtomicUsize::new(new_name()));
        Self { settings, client_id, clock, transactions, largest, name, state, closing }
    }

    /// One that leaves it to the broker whether a topic takes a record of up to so many bytes.
    pub(crate) fn with_largest(mut self, largest: usize) -> Self {
        self.largest = Some(largest);
        self
    }

    /// One for [`Self::transact`] alone.
    pub(crate) fn with_transactions(mut self, transactions: Transactions) -> Self {
        self.transactions = Some(transactions);
        self
    }

    /// Begins to connect. Half a second may pass before a new producer sends its first record, and that is not to make
    /// late what is due.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.native().map(drop)
    }

    /// Sends, and waits until the broker has confirmed or refused each: one answer per record, in order.
    pub(crate) async fn send(&self, records: &[Outgoing]) -> Vec<Confirmed> {
        let mut sending = match self.sending(records.len()) {
            Ok(sending) => sending,
            Err(error) => return records.iter().map(|_| Err(error.again())).collect(),
        };
        for record in records {
            sending.hand_over(record).await;
        }
        sending.wait().await
    }

    /// The same, one by one: each is on its way while the next is made ready.
    pub(crate) fn sending(&self, count: usize) -> Result<Sending<'_>> {
        let native = self.native()?;
        Ok(Sending { outbox: self, native, batch: Batch::new(), topics: Vec::with_capacity(count) })
    }

    /// Sends these and commits these offsets: both, or neither. One at a time. An error means that nobody knows which: the
    /// group has to be joined anew, to hear it from the broker.
    pub(crate) async fn transact(
        &self,
        records: &[Outgoing],
        offsets: impl FnOnce() -> Option<Offsets> + Send + 'static,
    ) -> Result<Transaction> {
        let native = match self.begin().await {
            Ok(native) => native,
            Err(error) => return Ok(Transaction::Undone(error)),
        };
        let reports = self.report(&native, records).await;
        if reports.iter().any(Result::is_err) {
            let is_away =
                |report: &Reported| matches!(report, Err(Unsent::Refused(error)) if is_timeout(error));
            if reports.iter().any(is_away) {
                self.rename(native).await;
            } else {
                self.abort(native).await;
            }
            let reasons = reports.into_iter().zip(records).map(|(report, record)| {
                let Err(Unsent::Refused(error)) = report else { return None };
                (!is_of_the_transaction(&error)).then(|| refused(&record.topic, error))
            });
            return Ok(Transaction::Refused(reasons.collect()));
        }
        let (of, closing) = (native.clone(), self.closing.clone());
        let ended = on_a_thread(move || {
            let Some(Offsets { marks, member }) = offsets() else {
                return Ended::Undone(Error::new(ErrorKind::Stale, "some of it is another relay's by now"));
            };
            let added = patiently(&closing, || of.send_offsets_to_transaction(&marks, &member, CALL));
            match added.and_then(|()| patiently(&closing, || of.commit_transaction(CALL))) {
                Ok(()) => Ended::Committed,
                Err(error) if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) => {
                    let text = "the broker takes too little beside an offset for the relay to work within transactions: \
                                set its `offset.metadata.max.bytes` to at least 4096";
                    Ended::Refused(Error::new(ErrorKind::Config, text).with_source(error))
                }
                Err(error) if requires_abort(&error) => Ended::Undone(fault("commit a transaction", error)),
                Err(error) => Ended::Unknown(fault("commit a transaction", error)),
            }
        });
        match ended.await {
            Ended::Committed => Ok(Transaction::Committed),
            Ended::Undone(error) => {
                self.abort(native).await;
                Ok(Transaction::Undone(error))
            }
            Ended::Refused(error) => {
                self.abort(native).await;
                Err(error)
            }
            Ended::Unknown(error) => Err(error),
        }
    }

    /// What becomes of each.
    async fn report(&self, native: &Native, records: &[Outgoing]) -> Vec<Reported> {
        let batch = Batch::new();
        for (index, record) in records.iter().enumerate() {
            let report = Box::new(Report { batch: batch.clone(), index });
            self.hand_over(native, record.native(report)).await;
        }
        batch.wait(records.len()).await
    }

    /// Opens it if need be, and begins.
    async fn begin(&self) -> Result<Arc<Native>> {
        let native = self.known().await?;
        let of = native.clone();
        let begun = on_a_thread(move || of.begin_transaction()).await;
        begun.map(|()| native.clone()).map_err(|error| self.not_begun(&native, error))
    }

    /// Makes itself known to the broker, unless it is: an error that is not retryable will not pass.
    pub(crate) async fn prepare_transactions(&self) -> Result<()> {
        self.known().await.map(drop)
    }

    async fn known(&self) -> Result<Arc<Native>> {
        let is_new = matches!(*lock(&self.state), State::Unopened);
        let native = self.native()?;
        if is_new {
            let (of, closing) = (native.clone(), self.closing.clone());
            let known = on_a_thread(move || patiently(&closing, || of.init_transactions(CALL))).await;
            known.map_err(|error| self.not_begun(&native, error))?;
        }
        Ok(native)
    }

    fn not_begun(&self, native: &Arc<Native>, error: KafkaError) -> Error {
        self.renew(native);
        fault("begin a transaction", error)
    }

    /// Nothing of it has happened. A producer that cannot say so is given up, and with it what it began.
    async fn abort(&self, native: Arc<Native>) {
        let (of, closing) = (native.clone(), self.closing.clone());
        let aborted = on_a_thread(move || patiently(&closing, || of.abort_transaction(CALL)));
        if let Err(error) = aborted.await {
            tracing::warn!(%error, "a transaction was not given up in good order");
            self.renew(&native);
        }
    }

    /// A transaction is over only when every partition that it wrote to knows, and until then whoever began it begins no other.
    /// While one of them is away, that is too long for the others: they go on under another name. Should nobody hear that it is
    /// given up, the broker finds out by itself: no offsets are part of it yet, and nothing of it is ever committed.
    async fn rename(&self, native: Arc<Native>) {
        let of = native.clone();
        if let Err(error) = on_a_thread(move || of.abort_transaction(CALL)).await {
            tracing::warn!(%error, "a transaction was not given up in good order");
        }
        self.name.store(new_name(), Ordering::SeqCst);
        self.renew(&native);
        // It takes its time to go.
        drop(tokio::task::spawn_blocking(move || drop(native)));
    }

    /// Waits for what is on its way, and sends no more. Idempotent.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        let before = std::mem::replace(&mut *lock(&self.state), State::Closed);
        if let State::Open(native) = before {
            let within_transactions = self.transactions.is_some();
            let closed = tokio::task::spawn_blocking(move || {
                if within_transactions {
                    // One that still runs would hold up those who read what is committed until the broker gives it up.
                    let _ = native.abort_transaction(CALL);
                }
                if let Err(error) = native.flush(FLUSH) {
                    tracing::warn!(%error, "records were still on their way to Kafka when the producer was closed");
                }
            });
            let _ = closed.await;
        }
    }

    /// Gives a record to the library, waiting while it has no room.
    async fn hand_over(&self, native: &Native, mut outgoing: NativeRecord<'_>) {
        loop {
            match native.send(outgoing) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                    outgoing = back;
                    self.clock.sleep(ROOM).await;
                }
                Err((error, back)) => return back.delivery_opaque.say(Err(Unsent::Refused(error))),
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
        self.config()
            .create_with_context(Reports(Trouble::default()))
            .map_err(|error| fault("open a producer", error))
    }

    fn config(&self) -> ClientConfig {
        let mut config = self.settings.client(&self.client_id);
        if let Some(largest) = self.largest {
            config.set("message.max.bytes", largest.to_string());
        }
        // A batch that is larger than the broker allows is refused as a whole, whatever the size of its records.
        config.set("batch.size", BATCH.min(self.settings.max_record).to_string());
        config.set("enable.idempotence", "true").set("acks", "all");
        config.set("message.timeout.ms", self.settings.send_timeout.as_millis().to_string());
        config.set("linger.ms", "1").set("batch.num.messages", "10000");
        config.set("queue.buffering.max.messages", "100000");
        // The one that clients in Java have: a key is in the same partition whoever sends it.
        config.set("partitioner", "murmur2_random");
        // A topic that is not there is known not to be before anything is sent to it.
        config.set("topic.metadata.propagation.max.ms", "10000");
        if let Some(Transactions { id, timeout }) = &self.transactions {
            let id = format!("{id}-{}", self.name.load(Ordering::SeqCst));
            config.set("transactional.id", id).set("transaction.timeout.ms", timeout.as_millis().to_string());
            let patience = self.settings.send_timeout.min(*timeout);
            config.set("message.timeout.ms", patience.as_millis().to_string());
        }
        self.settings.finish(config)
    }

    /// After a fatal error the library refuses everything: the next send opens another producer.
    fn renew(&self, broken: &Arc<Native>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Open(native) if Arc::ptr_eq(native, broken)) {
            tracing::warn!("a Kafka producer is of no more use: opening another one");
            *state = State::Unopened;
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

/// What is known of a transaction after the attempt to commit it.
enum Ended {
    Committed,
    Undone(Error),
    /// Nothing is there, and never will be.
    Refused(Error),
    Unknown(Error),
}

fn new_name() -> usize {
    NAMES.fetch_add(1, Ordering::SeqCst)
}

/// A call to the library that waits.
async fn on_a_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and nobody waits for us any more.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Calls again for as long as the library says that this may help, and nobody wants to leave: what it has begun it must be
/// asked to finish.
fn patiently(closing: &AtomicBool, call: impl Fn() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
    loop {
        match call() {
            Err(KafkaError::Transaction(error))
                if error.is_retriable() && !closing.load(Ordering::SeqCst) =>
            {
                tracing::warn!(%error, "a transaction takes its time");
            }
            answer => return answer,
        }
    }
}

fn is_timeout(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(Code::MessageTimedOut)
}

fn requires_abort(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.txn_requires_abort())
}

/// Whether a record was not sent because of the others, or of the whole.
fn is_of_the_transaction(error: &KafkaError) -> bool {
    let of_the_whole = [
        Code::PurgeQueue,
        Code::PurgeInflight,
        Code::State,
        Code::Fatal,
        Code::Fenced,
        Code::InvalidTransactionalState,
        Code::InvalidProducerEpoch,
        Code::InvalidProducerIdMapping,
        Code::ProducerFenced,
    ];
    error.rdkafka_error_code().is_none_or(|code| of_the_whole.contains(&code))
}

fn refused(topic: &str, error: KafkaError) -> Error {
    fault(&format!("send to `{topic}`"), error)
}

impl Outgoing {
    fn native(&self, report: Box<Report>) -> NativeRecord<'_> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, report);
        (record.key, record.payload) = (self.key.as_deref(), self.body.as_deref());
        record.headers = Some(self.native_headers());
        record
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

impl Sending<'_> {
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
        let mut reports = self.batch.wait(self.topics.len()).await;
        for _ in 0..AGAIN {
            if !self.send_unconfirmed(&mut reports).await {
                break;
            }
        }
        let mut fatal = false;
        let answers = reports.into_iter().zip(&self.topics).map(|(report, topic)| {
            report.map_err(|unsent| match unsent {
                Unsent::Refused(error) => {
                    fatal |= error.rdkafka_error_code() == Some(Code::Fatal);
                    refused(topic, error)
                }
                Unsent::Unconfirmed(_) => {
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
        for (place, report) in places.into_iter().zip(batch.wait(count).await) {
            reports[place] = report;
        }
        count > 0
    }
}

/// The records of one send, and what became of them: counted, and waited for together.
struct Batch {
    /// What there is to say but that a record was confirmed, by its index.
    said: Mutex<Vec<(usize, Reported)>>,
    heard: AtomicUsize,
    /// How many are waited for, once that is known.
    wanted: AtomicUsize,
    done: Notify,
}

impl Batch {
    fn new() -> Arc<Self> {
        let (said, heard) = Default::default();
        Arc::new(Self { said, heard, wanted: AtomicUsize::new(usize::MAX), done: Notify::new() })
    }

    async fn wait(&self, count: usize) -> Vec<Reported> {
        self.wanted.store(count, Ordering::SeqCst);
        while self.heard.load(Ordering::SeqCst) < count {
            self.done.notified().await;
        }
        let mut reports: Vec<_> = (0..count).map(|_| Ok(None)).collect();
        for (index, report) in lock(&self.said).drain(..) {
            reports[index] = report;
        }
        reports
    }
}

/// One record of a batch.
struct Report {
    batch: Arc<Batch>,
    index: usize,
}

impl Report {
    fn say(&self, result: Reported) {
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

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::SystemClock;

    fn outbox(max_record: usize) -> Outbox {
        let settings = KafkaSettings { max_record, ..KafkaSettings::at("host:9092") };
        Outbox::new(settings, "x".to_owned(), Arc::new(SystemClock::new()))
    }

    #[test]
    fn no_name_for_transactions_is_used_twice_by_one_process() {
        let name = || {
            let transactions = Transactions { id: "shop".to_owned(), timeout: Duration::from_secs(10) };
            let config = outbox(1_048_588).with_transactions(transactions).config();
            config.get("transactional.id").map(str::to_owned).unwrap()
        };
        let (first, second) = (name(), name());
        assert!(first.starts_with("shop-") && second.starts_with("shop-"), "{first} {second}");
        assert_ne!(first, second);
    }

    #[test]
    fn a_batch_is_no_larger_than_the_broker_allows_though_one_record_may_be() {
        for (max_record, batch) in [(500_000, "500000"), (1_048_588, "1000000")] {
            let config = outbox(max_record).with_largest(64 << 20).config();
            assert_eq!(config.get("batch.size"), Some(batch));
            assert_eq!(config.get("message.max.bytes"), Some("67108864"));
            let config = outbox(max_record).config();
            assert_eq!(config.get("batch.size"), Some(batch));
            assert_eq!(config.get("message.max.bytes"), Some(max_record.to_string().as_str()));
        }
    }
}
