//! A cluster that loses one node after the other. The remaining nodes take over its partitions and
//! groups.

mod rig;

use dwell_conformance::servers::kafka::KafkaCluster;
use dwell_core::{
    Address, Clock as _, Consumer, Due, Envelope, Message, OnMissing, Producer, Seams, Subscription,
    SystemClock, Timestamp, Topic, Transport,
};
use dwell_kafka::{Kafka, KafkaSettings};
use rdkafka::{
    ClientConfig,
    admin::{AdminOptions, NewTopic, TopicReplication},
    consumer::{BaseConsumer, Consumer as _},
};
use rig::scene::{Running, SECOND, Scene};
use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Mutex, MutexGuard};

/// A cluster of three nodes, for one test at a time.
async fn cluster() -> MutexGuard<'static, KafkaCluster> {
    static CLUSTER: OnceLock<Mutex<KafkaCluster>> = OnceLock::new();
    CLUSTER.get_or_init(|| Mutex::new(KafkaCluster::start().unwrap())).lock().await
}

/// Number of messages sent while a node is down. Half of them have a delay.
const EACH: usize = 40;

/// Sends until each message is confirmed. Unconfirmed messages are sent again.
async fn send(producer: &Arc<dyn Producer>, mut waiting: Vec<Envelope>) {
    while !waiting.is_empty() {
        let answers = producer.send(&waiting).await;
        let both = waiting.into_iter().zip(answers);
        let failed = both.filter_map(|(envelope, answer)| match answer {
            Ok(_) => None,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                Some(envelope)
            }
        });
        waiting = failed.collect();
    }
}

/// Receives and settles until all of these ids have arrived.
async fn receive(consumer: &Arc<dyn Consumer>, mut missing: BTreeSet<String>) {
    for _ in 0..60 {
        for delivery in consumer.receive(100, SECOND * 2, None).await.unwrap_or_default() {
            missing.remove(&*delivery.message.id.0);
            // If another member has the message by now, it arrives again.
            rig::ack(consumer, delivery).await;
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("these never arrived: {missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_each_node_in_turn_loses_no_message() {
    let mut cluster = cluster().await;
    let (mut settings, seams) = (rig::settings(&cluster.address()), Seams::system("cluster"));
    settings.partitions = 3;
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.unwrap();
    let mail = Subscription::new("orders", "mail");
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay = tokio::spawn(dwell_kafka::relay(settings, seams, Arc::default(), stopped));
    let producer = kafka.producer().await.unwrap();
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    // Wait until everything works: the relay does not start while a configured broker is down.
    let first = Message::new("first", "t", "x");
    let first = Envelope::new(Address::topic("orders"), first).due(Due::After(SECOND * 2));
    tokio::join!(send(&producer, vec![first]), receive(&consumer, BTreeSet::from(["first".to_owned()])));
    for node in 0..3 {
        cluster.nodes()[node].kill();
        let envelopes = (0..EACH).map(|n| {
            let due = Due::After(SECOND * 2 * (n as u32 % 2));
            let message = Message::new(format!("{node}-{n}"), "t", "x");
            Envelope::new(Address::topic("orders"), message).due(due)
        });
        let envelopes: Vec<_> = envelopes.collect();
        let ids = envelopes.iter().map(|envelope| envelope.message.id.0.to_string()).collect();
        tokio::join!(send(&producer, envelopes), receive(&consumer, ids));
        cluster.nodes()[node].resume().unwrap();
    }
    drop(stop);
    relay.await.unwrap().unwrap();
    kafka.close().await.unwrap();
}

/// The cluster's default is three replicas.
#[tokio::test(flavor = "multi_thread")]
async fn topics_have_the_requested_number_of_replicas() {
    let cluster = cluster().await;
    let seams = Seams::system("copies");
    let bare: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", cluster.address()).create().unwrap();
    for (replication, copies) in [(Some(2), 2), (None, 3)] {
        let (mut settings, topic) = (rig::settings(&cluster.address()), format!("copies-{copies}"));
        settings.replication = replication;
        settings.relay.prefix = format!("{topic}-");
        let kafka = Kafka::connect(settings, seams.clone()).await.unwrap();
        kafka.provision(&[Topic::named(topic.clone())], &[], OnMissing::Create).await.unwrap();
        for name in [topic.clone(), format!("{topic}-due")] {
            let metadata = bare.fetch_metadata(Some(&name), SECOND * 10).unwrap();
            let partitions = metadata.topics()[0].partitions();
            assert!(partitions.iter().all(|one| one.replicas().len() == copies), "{name}");
        }
        kafka.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_an_unreachable_target_are_put_back_without_delaying_others() {
    out_of_reach(None).await;
}

/// The other records are sent in the next transaction.
#[tokio::test(flavor = "multi_thread")]
async fn with_transactions_records_of_an_unreachable_target_are_put_back() {
    out_of_reach(Some(SECOND * 5)).await;
}

/// The send timeout is longer than the test.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_an_unreachable_target_does_not_delay_other_targets() {
    const FOR_EVER: Duration = Duration::from_secs(3600);
    let target = Unreachable::new(FOR_EVER, None).await;
    target.send().await;
    target.read_here().await;
    let counts = target.relay.counts.clone();
    target.scene.until("all records are counted", || counts.tally().forwarded == (HERE + 2) as u64).await;
    // The sends to the unreachable target did not time out.
    assert_eq!(counts.tally().put_back, 0);
    target.come_back().await;
}

/// There are few records, with more bytes than the relay may have in memory.
#[tokio::test(flavor = "multi_thread")]
async fn large_records_for_an_unreachable_target_leave_room_for_others() {
    const BYTES: usize = 2 << 20;
    const LARGE: usize = BYTES / 10_000 * 2;
    let change = |settings: &mut KafkaSettings| settings.relay.read_ahead.1 = BYTES;
    let target = Unreachable::with(Duration::from_secs(3600), None, change).await;
    let now = target.scene.now() + 1_500;
    let large = (0..LARGE).map(|n| {
        let mut envelope = record(&target.away, n.to_string(), now + n as i64 * 20);
        envelope.message = envelope.message.with(|message| message.body = "x".repeat(10_000).into());
        envelope
    });
    let here = (0..HERE).map(|n| record(&target.here, n.to_string(), now + n as i64 * 250));
    send(&target.producer, large.chain(here).collect()).await;
    let read = target.scene.read(&target.here, HERE + 2).await;
    let latest = read.iter().map(late).max().unwrap();
    assert!(latest < 10_000, "late by {latest} ms");
    let said = rig::log::lines(&[" WARN ", "holding its records", &target.away]);
    assert_eq!(said.len(), 1, "{said:#?}");
    let Unreachable { mut cluster, scene, relay, away, .. } = target;
    cluster.nodes()[2].resume().unwrap();
    let read = scene.read(&away, LARGE).await;
    let keys: BTreeSet<_> = read.iter().map(|(_, key, ..)| key.as_str()).collect();
    assert_eq!(keys.len(), LARGE);
    relay.stop().await;
}

/// Sends to a target whose only replica is on a node that is down.
async fn out_of_reach(transactions: Option<Duration>) {
    let target = Unreachable::new(SECOND * 2, transactions).await;
    target.send().await;
    target.read_here().await;
    let counts = target.relay.counts.clone();
    target.scene.until("all are put back", || counts.tally().put_back >= AWAY as u64).await;
    target.come_back().await;
}

/// Number of records for the unreachable target.
const AWAY: usize = 20;
/// Number of records for the reachable target.
const HERE: usize = 40;

/// A relay with an unreachable and a reachable target.
struct Unreachable {
    cluster: MutexGuard<'static, KafkaCluster>,
    scene: Scene,
    relay: Running,
    producer: Arc<dyn Producer>,
    here: String,
    away: String,
}

impl Unreachable {
    async fn new(send_timeout: Duration, transactions: Option<Duration>) -> Self {
        Self::with(send_timeout, transactions, |_| {}).await
    }

    async fn with(
        send_timeout: Duration,
        transactions: Option<Duration>,
        change: impl Fn(&mut KafkaSettings),
    ) -> Self {
        let mut cluster = cluster().await;
        let mut scene = Scene::at(&cluster.address()).await;
        scene.settings.send_timeout = send_timeout;
        scene.settings.relay.transactions = transactions;
        change(&mut scene.settings);
        let here = scene.topic("here").await;
        let away = format!("away-{}", scene.mark);
        let new = NewTopic::new(&away, 1, TopicReplication::Variable(&[&[3]]));
        scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        let relay = scene.relay();
        let producer = scene.kafka.producer().await.unwrap();
        // The first record shows that the relay works, the second that the other nodes have taken
        // over.
        send(&producer, vec![record(&here, "first".to_owned(), scene.now() + 1_500)]).await;
        scene.read(&here, 1).await;
        // Its offset is committed a moment later. If the coordinator dies before that, the record
        // is forwarded again.
        SystemClock::new().sleep(Duration::from_secs(1)).await;
        cluster.nodes()[2].kill();
        send(&producer, vec![record(&here, "second".to_owned(), scene.now() + 1_500)]).await;
        scene.read(&here, 2).await;
        Self { cluster, scene, relay, producer, here, away }
    }

    /// Sends records to both targets. Those for the reachable one become due before, while and
    /// after the relay finds out that the other one is unreachable.
    async fn send(&self) {
        let now = self.scene.now() + 1_500;
        let batch = (0..AWAY).map(|n| record(&self.away, n.to_string(), now + n as i64));
        let batch = batch.chain((0..HERE).map(|n| record(&self.here, n.to_string(), now + n as i64 * 100)));
        send(&self.producer, batch.collect()).await;
    }

    /// Reads all records of the reachable target while the node is still down.
    async fn read_here(&self) {
        let read = self.scene.read(&self.here, HERE + 2).await;
        assert!(read.iter().all(|record| late(record) >= 0), "early: {read:?}");
    }

    async fn come_back(mut self) {
        self.cluster.nodes()[2].resume().unwrap();
        let read = self.scene.read(&self.away, AWAY).await;
        assert!(read.iter().all(|record| late(record) >= 0), "early: {read:?}");
        let keys: BTreeSet<_> = read.iter().map(|(_, key, ..)| key.as_str()).collect();
        assert_eq!(keys.len(), AWAY, "{keys:?}");
        let counts = self.relay.counts.clone();
        self.relay.stop().await;
        let tally = counts.tally();
        assert_eq!((tally.forwarded, tally.parked), ((AWAY + HERE + 2) as u64, 0), "{tally:?}");
        if self.scene.settings.relay.transactions.is_some() {
            let counts = (self.scene.count(&self.away), self.scene.count(&self.here));
            assert_eq!(counts, (AWAY, HERE + 2), "some records are duplicates");
        }
    }
}

/// Returns a record whose body is its due time.
fn record(target: &str, id: String, at: i64) -> Envelope {
    let message = Message::new(id.clone(), "t", at.to_string()).with(|message| message.key = Some(id.into()));
    Envelope::new(Address::topic(target), message).due(Due::At(Timestamp(at)))
}

/// Returns the lateness in milliseconds.
fn late((at, _, _, due): &(i64, String, String, String)) -> i64 {
    at - due.parse::<i64>().unwrap()
}
