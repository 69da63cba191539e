//! Sends records in batches. Each record is confirmed by all replicas.

mod native;
mod sending;
mod traffic;
mod transactions;

pub(crate) use sending::{Confirmed, Sending, is_purged};
pub(crate) use transactions::{Transaction, Transactions};

use crate::{
    fault::fault,
    probe::{Probe, RECOVERY, names_brokers},
    record::Outgoing,
    settings::{KafkaSettings, SILENT},
    trouble::Trouble,
};
use dwell_core::{Clock, Error, ErrorKind, Result};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::{Producer as _, PurgeConfig},
};
use sending::{NativeRecord, Reports, Unsent};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use traffic::Traffic;
use transactions::{CALL, new_name};

type Native = native::Native<Reports>;

/// Pause before a record is handed over again when librdkafka's queue is full.
const ROOM: Duration = Duration::from_millis(2);
/// How long closing waits for records in flight.
const FLUSH: Duration = Duration::from_secs(10);
/// How long closing then waits for the threads of librdkafka.
const GONE: Duration = Duration::from_secs(2);
/// Interval at which a producer with waiting sends is checked.
const WATCH: Duration = Duration::from_secs(1);
/// How long a producer may confirm none of its records in flight.
const SILENCE: Duration = Duration::from_secs(5);
/// Size of a batch in bytes, where the broker allows as much.
const BATCH: usize = 1_000_000;

/// Sends records. The producer is idempotent, so that a retry by librdkafka neither duplicates nor
/// reorders records.
pub(crate) struct Outbox {
    settings: KafkaSettings,
    client_id: String,
    clock: Arc<dyn Clock>,
    transactions: Option<Transactions>,
    /// Size of the largest record that it hands to the broker, if not `max_record`.
    largest: Option<usize>,
    /// Number in its transactional id, which is unique in this process: see [`Self::rename`].
    name: AtomicUsize,
    state: Mutex<State>,
    /// Whether it is about to be closed. Calls that a broker may never answer are then not awaited.
    closing: Arc<AtomicBool>,
    /// Distinguishes a producer that no longer works from a broker that is unavailable.
    probe: Option<Arc<Probe>>,
    /// Since when a broker answers although the producer finds none. All sends share one watcher,
    /// which holds the lock.
    watching: tokio::sync::Mutex<Option<Duration>>,
    /// Sends each record in a batch of its own: used for records whose batch was refused and that
    /// may be accepted alone. This inner outbox has none itself.
    alone: Option<Box<Self>>,
}

/// Opened on first use, and again after an error that librdkafka cannot recover from.
enum State {
    Unopened,
    Open(Arc<Native>),
    Closed,
}

impl Outbox {
    pub(crate) fn new(settings: KafkaSettings, client_id: String, clock: Arc<dyn Clock>) -> Self {
        let mut outbox = Self::unopened(settings.clone(), client_id.clone(), clock.clone());
        let mut alone = Self::unopened(settings, client_id, clock);
        alone.closing = outbox.closing.clone();
        outbox.alone = Some(Box::new(alone));
        outbox
    }

    fn unopened(settings: KafkaSettings, client_id: String, clock: Arc<dyn Clock>) -> Self {
        let (state, closing) = (Mutex::new(State::Unopened), Arc::default());
        let (transactions, largest, name) = (None, None, AtomicUsize::new(new_name()));
        let (probe, watching, alone) = (None, Default::default(), None);
        Self {
            settings,
            client_id,
            clock,
            transactions,
            largest,
            name,
            state,
            closing,
            probe,
            watching,
            alone,
        }
    }

    /// Replaces a producer that does not recover.
    pub(crate) fn with_probe(mut self, probe: Arc<Probe>) -> Self {
        self.alone.iter_mut().for_each(|alone| alone.probe = Some(probe.clone()));
        self.probe = Some(probe);
        self
    }

    /// Lets the broker decide whether a topic accepts records of up to this size.
    pub(crate) fn with_largest(mut self, largest: usize) -> Self {
        self.largest = Some(largest);
        self.alone.iter_mut().for_each(|alone| alone.largest = Some(largest));
        self
    }

    /// Makes this an outbox for [`Self::transact`] alone.
    pub(crate) fn with_transactions(mut self, transactions: Transactions) -> Self {
        self.alone.iter_mut().for_each(|alone| alone.transactions = Some(transactions.clone()));
        self.transactions = Some(transactions);
        self
    }

    /// Opens the producer and begins to connect. A new producer may take half a second to send its
    /// first record, which must not delay due records.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.native().map(drop)
    }

    /// Sends records and waits until the broker has confirmed or refused each. Returns one answer
    /// per record, in order.
    pub(crate) async fn send<R: AsRef<Outgoing> + Sync>(&self, records: &[R]) -> Vec<Confirmed> {
        let mut sending = match self.sending(records.len()) {
            Ok(sending) => sending,
            Err(error) => return records.iter().map(|_| Err(error.again())).collect(),
        };
        for record in records {
            sending.hand_over(record.as_ref()).await;
        }
        sending.wait().await
    }

    /// Sends records one by one: each is in flight while the next one is prepared.
    pub(crate) fn sending(&self, count: usize) -> Result<Sending<'_>> {
        let native = self.native()?;
        Ok(Sending::new(self, native, count))
    }

    /// Returns how long no record was confirmed while some are in flight.
    pub(crate) fn silence(&self) -> Duration {
        match &*lock(&self.state) {
            State::Open(native) => native.context().traffic.silence(),
            _ => Duration::ZERO,
        }
    }

    /// Drops the records that were not sent to a broker yet. Each of them is answered with a
    /// retryable error, see [`is_purged`]. The threads of librdkafka do this later, without
    /// blocking the caller.
    pub(crate) fn purge(&self) {
        let native = match &*lock(&self.state) {
            State::Open(native) => native.clone(),
            _ => return,
        };
        native.purge(PurgeConfig::default().queue().non_blocking());
    }

    /// Waits for records in flight, and sends no more. Idempotent.
    pub(crate) async fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.end().await;
        if let Some(alone) = &self.alone {
            alone.end().await;
        }
    }

    async fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Closed);
        if let State::Open(native) = before {
            let gone = native.ended();
            let within_transactions = self.transactions.is_some();
            let closed = tokio::task::spawn_blocking(move || {
                if within_transactions {
                    // An open transaction would block readers of committed records until the broker
                    // aborts it.
                    let _ = native.abort_transaction(CALL);
                }
                if let Err(error) = native.flush(FLUSH) {
                    tracing::warn!(%error, "producer closed with records in flight; they may be lost");
                }
            });
            let _ = closed.await;
            // A process that exits while threads of librdkafka run may crash at the very end.
            tokio::select! {
                biased;
                () = gone => {}
                () = self.clock.sleep(GONE) => tracing::debug!("Kafka producer is still in use after it was closed"),
            }
        }
    }

    /// Gives a record to librdkafka, and waits while its queue is full.
    async fn hand_over(&self, native: &Native, mut outgoing: NativeRecord<'_>) {
        let traffic = &native.context().traffic;
        loop {
            traffic.departs();
            let sent = native.send(outgoing);
            if sent.is_err() {
                traffic.ends(false);
            }
            match sent {
                Ok(()) => return,
                // Without a polling thread the queue never drains.
                Err((_, back)) if native.has_ended() => {
                    return back.delivery_opaque.say(Err(Unsent::Unheard));
                }
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
        let traffic = Traffic::new(self.clock.clone());
        let reports = Reports::new(Trouble::new(self.clock.clone()), traffic, self.alone.is_some());
        Native::open(&self.config(), reports, native::IDLE).map_err(|error| fault("open a producer", error))
    }

    fn config(&self) -> ClientConfig {
        let mut config = self.settings.client(&self.client_id);
        if let Some(largest) = self.largest {
            config.set("message.max.bytes", largest.to_string());
        }
        // The broker refuses a batch that is larger than it allows as a whole, whatever the size of
        // its records. All of them are then sent one by one, because only then it is known which
        // record is larger than its topic allows.
        config.set("batch.size", BATCH.min(self.settings.max_record).to_string());
        config.set("enable.idempotence", "true").set("acks", "all");
        // A broker that creates topics automatically would recreate a deleted target, with settings
        // that nobody chose.
        config.set("allow.auto.create.topics", "false");
        config.set("message.timeout.ms", self.settings.send_timeout.as_millis().to_string());
        config.set("linger.ms", "1").set("batch.num.messages", "10000");
        config.set("queue.buffering.max.messages", "100000");
        // The partitioner of Java clients: a key is in the same partition whichever client sends
        // it.
        config.set("partitioner", "murmur2_random");
        // Topics are checked before anything is sent to them, so a missing topic is not expected
        // here.
        config.set("topic.metadata.propagation.max.ms", "10000");
        if let Some(Transactions { id, timeout }) = &self.transactions {
            let id = format!("{id}-{}", self.name.load(Ordering::SeqCst));
            config.set("transactional.id", id).set("transaction.timeout.ms", timeout.as_millis().to_string());
            let patience = self.settings.send_timeout.min(*timeout);
            config.set("message.timeout.ms", patience.as_millis().to_string());
            // librdkafka refuses a socket timeout that is longer than the transaction timeout.
            config.set("socket.timeout.ms", SILENT.min(*timeout).as_millis().to_string());
        }
        let mut config = self.settings.finish(config);
        if self.alone.is_none() {
            config.set("batch.num.messages", "1");
        }
        config
    }

    /// Replaces a producer that confirms nothing for long and finds no broker, although a new
    /// client finds one. Its records in flight are then answered as not confirmed. A producer that
    /// finds a broker is kept: a target without a leader or with a slow replica would not confirm
    /// to a new producer either.
    async fn watch(&self, native: &Arc<Native>) {
        let Some(probe) = &self.probe else { return std::future::pending().await };
        // When this send ends, the watcher of the next send continues.
        let mut answered = self.watching.lock().await;
        loop {
            self.clock.tick(WATCH).await;
            if native.context().traffic.silence() < SILENCE {
                *answered = None;
                continue;
            }
            let (probe, of) = (probe.clone(), native.clone());
            let is_cut_off = move || !names_brokers(of.client()) && probe.answers();
            let is_cut_off = tokio::task::spawn_blocking(is_cut_off).await;
            let now = self.clock.elapsed();
            *answered = is_cut_off.is_ok_and(|is| is).then(|| answered.unwrap_or(now));
            if answered.is_some_and(|answered: Duration| now.saturating_sub(answered) >= RECOVERY)
                && native.context().traffic.silence() >= SILENCE
            {
                self.renew(native);
                let of = native.clone();
                let purge = move || of.purge(PurgeConfig::default().queue().inflight());
                let _ = tokio::task::spawn_blocking(purge).await;
                *answered = None;
                drop(answered);
                return std::future::pending().await;
            }
        }
    }

    /// Replaces a producer on the next send: after a fatal error librdkafka refuses everything, and
    /// a producer that has removed all brokers never connects again.
    fn renew(&self, broken: &Arc<Native>) {
        let mut state = lock(&self.state);
        if matches!(&*state, State::Open(native) if Arc::ptr_eq(native, broken)) {
            tracing::warn!("Kafka producer does not recover; replacing it");
            *state = State::Unopened;
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_core::{BoxFuture, Moment, SystemClock, Timestamp};

    fn outbox(max_record: usize) -> Outbox {
        let settings = KafkaSettings { max_record, ..KafkaSettings::at("host:9092") };
        Outbox::new(settings, "x".to_owned(), Arc::new(SystemClock::new()))
    }

    /// A clock that counts its ticks.
    struct Counting(SystemClock, AtomicUsize);

    impl Clock for Counting {
        fn moment(&self) -> Moment {
            self.0.moment()
        }

        fn elapsed(&self) -> Duration {
            self.0.elapsed()
        }

        fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
            self.0.sleep(delay)
        }

        fn sleep_until(&self, time: Timestamp) -> BoxFuture<'static, ()> {
            self.0.sleep_until(time)
        }

        fn tick(&self, _: Duration) -> BoxFuture<'static, ()> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn all_sends_of_an_outage_share_one_watcher() {
        let settings = KafkaSettings::at("127.0.0.1:1");
        let clock = Arc::new(Counting(SystemClock::new(), AtomicUsize::new(0)));
        let probe = Arc::new(Probe::new(settings.clone(), clock.clone()));
        let outbox = Outbox::new(settings, "x".to_owned(), clock.clone()).with_probe(probe);
        let native = outbox.native().unwrap();
        let mut sends: Vec<_> = (0..20).map(|_| Box::pin(outbox.watch(&native))).collect();
        for send in &mut sends {
            assert!(futures_util::poll!(send).is_pending());
        }
        assert_eq!(clock.1.load(Ordering::SeqCst), 1);
        drop(sends.remove(0));
        assert!(futures_util::poll!(&mut sends[0]).is_pending());
        assert_eq!(clock.1.load(Ordering::SeqCst), 2, "the next send continues to watch");
    }

    #[test]
    fn a_process_uses_each_transactional_id_once() {
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
    fn a_batch_fits_the_broker_limit_even_if_records_may_be_larger() {
        for (max_record, batch) in [(500_000, "500000"), (1_048_588, "1000000")] {
            let config = outbox(max_record).with_largest(64 << 20).config();
            assert_eq!(config.get("batch.size"), Some(batch));
            assert_eq!(config.get("message.max.bytes"), Some("67108864"));
            let config = outbox(max_record).config();
            assert_eq!(config.get("batch.size"), Some(batch));
            assert_eq!(config.get("message.max.bytes"), Some(max_record.to_string().as_str()));
        }
    }

    #[test]
    fn a_resent_record_has_its_own_batch_whatever_the_settings() {
        let mut settings = KafkaSettings::at("host:9092");
        settings.properties.push(("batch.num.messages".to_owned(), "500".to_owned()));
        let transactions = Transactions { id: "shop".to_owned(), timeout: Duration::from_secs(10) };
        let outbox = Outbox::new(settings, "x".to_owned(), Arc::new(SystemClock::new()));
        let outbox = outbox.with_largest(64 << 20).with_transactions(transactions);
        let (many, one) = (outbox.config(), outbox.alone.as_ref().unwrap().config());
        assert_eq!((many.get("batch.num.messages"), one.get("batch.num.messages")), (Some("500"), Some("1")));
        assert_eq!(many.get("message.max.bytes"), one.get("message.max.bytes"));
        assert_ne!(many.get("transactional.id"), one.get("transactional.id"));
    }

    #[test]
    fn sends_are_idempotent_fully_acknowledged_and_partitioned_like_java_clients() {
        let transactions = Transactions { id: "shop".to_owned(), timeout: Duration::from_secs(10) };
        for outbox in [outbox(1_048_588), outbox(1_048_588).with_transactions(transactions)] {
            let config = outbox.config();
            for (name, value) in
                [("enable.idempotence", "true"), ("acks", "all"), ("partitioner", "murmur2_random")]
            {
                assert_eq!(config.get(name), Some(value), "{name}");
            }
        }
    }

    #[tokio::test]
    async fn a_producer_opens_with_any_transaction_timeout() {
        for seconds in [1, 3, 60] {
            let timeout = Duration::from_secs(seconds);
            let transactions = Transactions { id: "shop".to_owned(), timeout };
            let outbox = outbox(1_048_588).with_transactions(transactions);
            assert_eq!(outbox.prepare().map_err(|error| error.to_string()), Ok(()), "{seconds} s");
        }
    }

    #[test]
    fn a_send_times_out_before_its_transaction() {
        for (timeout, given_up) in [(10, "10000"), (3600, "30000")] {
            let transactions = Transactions { id: "shop".to_owned(), timeout: Duration::from_secs(timeout) };
            let config = outbox(1_048_588).with_transactions(transactions).config();
            assert_eq!(config.get("message.timeout.ms"), Some(given_up));
        }
        assert_eq!(outbox(1_048_588).config().get("message.timeout.ms"), Some("30000"));
    }
}
