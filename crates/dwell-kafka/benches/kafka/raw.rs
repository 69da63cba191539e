//! The bare client: the same records and settings, without Dwell.

use dwell_core::{Message, wire};
use rdkafka::{
    ClientConfig, ClientContext, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    message::{DeliveryResult, Header, Headers as _, Message as _, OwnedHeaders},
    producer::{BaseRecord, ProducerContext, ThreadedProducer},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Counts confirmed records.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl ClientContext for Count {}

impl ProducerContext for Count {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(crate) type Native = ThreadedProducer<Count>;

pub(crate) fn producer(address: &str) -> (Native, Count) {
    let count = Count::default();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address).set("enable.idempotence", "true").set("acks", "all");
    config.set("linger.ms", "1").set("batch.num.messages", "10000");
    (config.create_with_context(count.clone()).expect("a producer"), count)
}

/// Sends messages to a topic, and waits until all are confirmed.
fn send(producer: &Native, count: &Count, topic: &str, batch: &[Message]) {
    let before = count.0.load(Ordering::Relaxed);
    for message in batch {
        let sent_at = message.sent_at.map_or(0, |at| at.0).to_string();
        let headers = [
            (wire::ID, &*message.id.0),
            (wire::TYPE, &message.kind),
            (wire::CONTENT_TYPE, &message.content_type),
            (wire::SENT_AT, &sent_at),
            (wire::HANDLED_COUNT, "0"),
            (wire::FAILED_COUNT, "0"),
        ];
        let headers =
            headers.iter().fold(OwnedHeaders::new_with_capacity(headers.len()), |all, (key, value)| {
                all.insert(Header { key, value: Some(*value) })
            });
        hand_over(producer, BaseRecord::<[u8], [u8]>::to(topic).payload(&message.body).headers(headers));
    }
    wait(count, before + batch.len());
}

fn hand_over(producer: &Native, mut record: BaseRecord<'_, [u8], [u8]>) {
    while let Err((_, back)) = producer.send(record) {
        record = back;
        std::thread::yield_now();
    }
}

/// Waits for confirmations. `flush` would check them too rarely.
fn wait(count: &Count, until: usize) {
    while count.0.load(Ordering::Relaxed) < until {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Returns messages per second, sent in batches.
pub(crate) fn sends(address: &str, topic: &str, messages: &[Message], batch: usize) -> f64 {
    let (producer, count) = producer(address);
    send(&producer, &count, topic, &messages[..1]);
    let start = Instant::now();
    messages.chunks(batch).for_each(|batch| send(&producer, &count, topic, batch));
    messages.len() as f64 / start.elapsed().as_secs_f64()
}

/// Prefetch in records and bytes: at least as much as Dwell has in the same place.
pub(crate) const PREFETCH: (usize, usize) = (50_000, 32 << 20);
pub(crate) const RELAY_PREFETCH: (usize, usize) = (10_000, 16 << 20);

fn consumer(address: &str, topic: &str, group: &str, prefetch: (usize, usize)) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address).set("group.id", group).set("enable.auto.commit", "false");
    config.set("auto.offset.reset", "earliest").set("fetch.queue.backoff.ms", "5");
    config.set("fetch.wait.max.ms", "25").set("socket.nagle.disable", "true");
    config.set("queued.min.messages", prefetch.0.to_string());
    config.set("queued.max.messages.kbytes", (prefetch.1 >> 10).to_string());
    let consumer: BaseConsumer = config.create().expect("a consumer");
    consumer.subscribe(&[topic]).expect("a topic");
    consumer
}

/// Commits an offset. Only the last commit is synchronous.
fn commit(consumer: &BaseConsumer, topic: &str, next: i64, is_last: bool) {
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(next)).expect("an offset");
    let mode = if is_last { CommitMode::Sync } else { CommitMode::Async };
    consumer.commit(&list, mode).expect("the commit succeeds");
}

/// Interval between two commits, at least that of Dwell. The broker takes some milliseconds for
/// each commit, one after the other, and the last one would wait for all.
const COMMIT_EACH: Duration = Duration::from_millis(25);

/// Returns messages per second, read and committed in batches, from joining the group to having
/// left it.
pub(crate) fn receives(address: &str, topic: &str, group: &str, count: usize, batch: usize) -> f64 {
    let (start, mut read) = (Instant::now(), 0);
    let mut committed = start;
    let consumer = consumer(address, topic, group, PREFETCH);
    while read < count {
        let Some(Ok(message)) = consumer.poll(Duration::from_secs(1)) else { continue };
        // The copy outlives the poll, as the messages of Dwell do.
        let copy = message.detach();
        read += 1;
        if read % batch == 0 && committed.elapsed() >= COMMIT_EACH || read == count {
            committed = Instant::now();
            commit(&consumer, topic, copy.offset() + 1, read == count);
        }
    }
    drop(consumer);
    count as f64 / start.elapsed().as_secs_f64()
}

/// Number of records that the bare relay has in flight: as many as Dwell's.
pub(crate) const ON_THEIR_WAY: usize = 50_000;

/// Returns records per second, from one topic to another, from joining the group to having left it.
/// Confirmed records are committed while others are in flight; with one partition on either side,
/// these are all records up to the latest confirmed one.
pub(crate) fn relays(address: &str, from: &str, to: &str, group: &str, count: usize) -> f64 {
    let (start, mut read, mut first, mut done) = (Instant::now(), 0, None, 0);
    let mut committed = start;
    let consumer = consumer(address, from, group, RELAY_PREFETCH);
    let (producer, confirmed) = producer(address);
    while read < count {
        wait(&confirmed, (read + 1).saturating_sub(ON_THEIR_WAY));
        let Some(Ok(message)) = consumer.poll(Duration::from_secs(1)) else { continue };
        let copy = message.detach();
        let first = *first.get_or_insert(copy.offset());
        let headers = copy.headers().map(|headers| {
            headers.iter().fold(
                OwnedHeaders::new_with_capacity(headers.count()),
                rdkafka::message::OwnedHeaders::insert,
            )
        });
        let mut record = BaseRecord::<[u8], [u8]>::to(to);
        (record.payload, record.key, record.headers) = (copy.payload(), copy.key(), headers);
        hand_over(&producer, record);
        read += 1;
        let now_done = confirmed.0.load(Ordering::Relaxed);
        if now_done > done && committed.elapsed() >= COMMIT_EACH {
            (done, committed) = (now_done, Instant::now());
            commit(&consumer, from, first + done as i64, false);
        }
    }
    wait(&confirmed, count);
    commit(&consumer, from, first.expect("something was read") + count as i64, true);
    drop(consumer);
    count as f64 / start.elapsed().as_secs_f64()
}

/// Returns the latencies of a steady flow of records from one client to another, in milliseconds.
pub(crate) fn trips(address: &str, topic: &str, group: &str, per_second: usize, count: usize) -> Vec<f64> {
    let consumer = consumer(address, topic, group, PREFETCH);
    let (producer, confirmed) = producer(address);
    let start = Instant::now();
    let sender = std::thread::spawn({
        let topic = topic.to_owned();
        move || {
            for n in 0..count {
                let at = Duration::from_secs_f64(n as f64 / per_second as f64);
                std::thread::sleep(at.saturating_sub(start.elapsed()));
                let sent = start.elapsed().as_secs_f64().to_be_bytes();
                hand_over(&producer, BaseRecord::<[u8], [u8]>::to(&topic).payload(&sent));
            }
            // Dropping the producer discards what it has not sent yet.
            wait(&confirmed, count);
        }
    });
    let mut trips = Vec::with_capacity(count);
    while trips.len() < count {
        let Some(Ok(message)) = consumer.poll(Duration::from_secs(1)) else { continue };
        let sent = message.payload().and_then(|sent| Some(f64::from_be_bytes(sent.try_into().ok()?)));
        trips.push((start.elapsed().as_secs_f64() - sent.expect("the sender wrote the time")) * 1000.0);
    }
    sender.join().expect("the sender does not panic");
    trips
}
