//! A client that knows only the headers: it writes into the delay topics, and reads the target.

use dwell_core::{Clock, SystemClock, Timestamp};
use rdkafka::{
    ClientConfig, ClientContext, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    message::{DeliveryResult, Header, Message as _, OwnedHeaders},
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const TARGET: &str = "arrived";
const PARTITIONS: i32 = 2;
/// Interval at which each delay topic gets a record.
const PACE: Duration = Duration::from_millis(33);

/// One record.
#[derive(Default)]
struct Track {
    shelf: usize,
    written: i64,
    due: i64,
    confirmed: bool,
    /// Append times in the target, by the broker's clock.
    arrived: Vec<i64>,
}

type Tracks = Arc<Mutex<BTreeMap<u64, Track>>>;

pub(super) struct Traffic {
    shelves: Vec<(String, Duration)>,
    tracks: Tracks,
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
    reader: Option<JoinHandle<()>>,
}

pub(super) struct Left {
    pub(super) sent: usize,
    pub(super) arrived: usize,
    pub(super) lost: Vec<String>,
    pub(super) early: Vec<String>,
    pub(super) twice: usize,
}

struct Confirms(Tracks);

impl ClientContext for Confirms {}

impl ProducerContext for Confirms {
    type DeliveryOpaque = Box<u64>;

    fn delivery(&self, result: &DeliveryResult<'_>, number: Box<u64>) {
        if result.is_ok()
            && let Some(track) = lock(&self.0).get_mut(&number)
        {
            track.confirmed = true;
        }
    }
}

impl Traffic {
    /// Creates the target, waits for the delay topics, and begins.
    pub(super) async fn start(address: &str, shelves: Vec<(String, Duration)>, clock: &SystemClock) -> Self {
        let config = |more: &[(&str, &str)]| {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", address);
            for (name, value) in more {
                config.set(*name, *value);
            }
            config
        };
        let admin: AdminClient<DefaultClientContext> = config(&[]).create().expect("a client");
        let target = NewTopic::new(TARGET, PARTITIONS, TopicReplication::Fixed(1))
            .set("message.timestamp.type", "LogAppendTime");
        admin.create_topics(&[target], &AdminOptions::new()).await.expect("the target can be created");
        let reader: BaseConsumer = config(&[("group.id", "hangs-reader"), ("enable.auto.commit", "false")])
            .create()
            .expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            all.add_partition_offset(TARGET, partition, Offset::Beginning).expect("a partition");
        }
        reader.assign(&all).expect("the target can be read");
        for (shelf, _) in &shelves {
            for tries in 0.. {
                let metadata = reader.fetch_metadata(Some(shelf), Duration::from_secs(10));
                let is_there = |topic: &rdkafka::metadata::MetadataTopic| !topic.partitions().is_empty();
                if metadata.is_ok_and(|metadata| metadata.topics().iter().all(is_there)) {
                    break;
                }
                assert!(tries < 300, "the relays do not create `{shelf}`");
                clock.sleep(Duration::from_millis(200)).await;
            }
        }
        let tracks = Tracks::default();
        let (stop, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        // Retries create no duplicates, and every record is written in the end.
        let patient = [("enable.idempotence", "true"), ("message.timeout.ms", "600000"), ("linger.ms", "5")];
        let producer: ThreadedProducer<Confirms> =
            config(&patient).create_with_context(Confirms(tracks.clone())).expect("a producer");
        let writer = {
            let (tracks, stop, shelves) = (tracks.clone(), stop.clone(), shelves.clone());
            std::thread::spawn(move || write(&producer, &shelves, &tracks, &stop))
        };
        let heard = {
            let (tracks, end) = (tracks.clone(), end.clone());
            std::thread::spawn(move || read(&reader, &tracks, &end))
        };
        Self { shelves, tracks, stop, end, writer: Some(writer), reader: Some(heard) }
    }

    /// Returns the number of duplicates.
    pub(super) fn duplicates(&self) -> usize {
        lock(&self.tracks).values().map(|track| track.arrived.len().saturating_sub(1)).sum()
    }

    /// Returns how long after this time each delay topic delivered a record written since; `None`
    /// if that did not happen within the limit.
    pub(super) async fn resumed(
        &self,
        since: Timestamp,
        limit: Duration,
        clock: &SystemClock,
    ) -> Vec<(String, Option<Duration>)> {
        let start = clock.elapsed();
        loop {
            let mut after = vec![None::<Duration>; self.shelves.len()];
            for track in lock(&self.tracks).values().filter(|track| track.written > since.0) {
                for arrived in &track.arrived {
                    let took = Duration::from_millis((arrived - since.0).max(0) as u64);
                    let first = &mut after[track.shelf];
                    *first = Some(first.map_or(took, |first| first.min(took)));
                }
            }
            if after.iter().all(Option::is_some) || clock.elapsed() - start >= limit {
                return self.shelves.iter().map(|(topic, _)| topic.clone()).zip(after).collect();
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops writing, and waits for records in flight.
    pub(super) async fn finish(mut self, limit: Duration, clock: &SystemClock) -> Left {
        self.stop.store(true, Ordering::SeqCst);
        let writer = self.writer.take().expect("the writer is joined once");
        tokio::task::spawn_blocking(|| writer.join())
            .await
            .expect("a thread")
            .expect("the writer does not panic");
        let start = clock.elapsed();
        let is_here = |track: &Track| !track.confirmed || !track.arrived.is_empty();
        while !lock(&self.tracks).values().all(is_here) && clock.elapsed() - start < limit {
            clock.sleep(Duration::from_millis(200)).await;
        }
        // A duplicate may arrive a moment later.
        clock.sleep(Duration::from_secs(1)).await;
        self.end.store(true, Ordering::SeqCst);
        let reader = self.reader.take().expect("the reader is joined once");
        tokio::task::spawn_blocking(|| reader.join())
            .await
            .expect("a thread")
            .expect("the reader does not panic");
        let tracks = lock(&self.tracks);
        let show = |(number, track): (&u64, &Track)| {
            format!(
                "{number} of `{}`, written {}, due {}, arrived {:?}",
                self.shelves[track.shelf].0, track.written, track.due, track.arrived
            )
        };
        let of = |wanted: &dyn Fn(&Track) -> bool| {
            tracks.iter().filter(|(_, track)| wanted(track)).map(show).collect()
        };
        Left {
            sent: tracks.values().filter(|track| track.confirmed).count(),
            arrived: tracks.values().filter(|track| !track.arrived.is_empty()).count(),
            lost: of(&|track| !is_here(track)),
            early: of(&|track| track.arrived.iter().any(|at| *at < track.due)),
            twice: tracks.values().map(|track| track.arrived.len().saturating_sub(1)).sum(),
        }
    }
}

fn write(
    producer: &ThreadedProducer<Confirms>,
    shelves: &[(String, Duration)],
    tracks: &Tracks,
    stop: &AtomicBool,
) {
    let clock = SystemClock::new();
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        for (shelf, (topic, wait)) in shelves.iter().enumerate() {
            number += 1;
            let written = clock.now();
            let due = written.after(*wait).0;
            lock(tracks).insert(number, Track { shelf, written: written.0, due, ..Track::default() });
            let (key, due) = (number.to_string(), due.to_string());
            let headers = OwnedHeaders::new()
                .insert(Header { key: "x-target-topic", value: Some(TARGET) })
                .insert(Header { key: "x-process-at", value: Some(&due) });
            let record = BaseRecord::with_opaque_to(topic, Box::new(number));
            let sent = producer.send(record.key(&key).payload("x").headers(headers));
            assert!(sent.is_ok(), "the queue of the writer is full");
        }
        std::thread::park_timeout(PACE);
    }
    producer.flush(Duration::from_secs(120)).expect("all records are confirmed");
}

fn read(reader: &BaseConsumer, tracks: &Tracks, end: &AtomicBool) {
    while !end.load(Ordering::SeqCst) {
        let Some(Ok(message)) = reader.poll(Duration::from_millis(100)) else { continue };
        let number = message.key().and_then(|key| std::str::from_utf8(key).ok()?.parse().ok());
        let at = message.timestamp().to_millis().expect("records of the target have timestamps");
        let number: Option<u64> = number;
        if let Some(track) = lock(tracks).get_mut(&number.unwrap_or(0)) {
            track.arrived.push(at);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
