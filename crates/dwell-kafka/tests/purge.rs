//! A broker that hangs while many records become due: what still waits in the producer is not sent
//! when it continues, because the partitions are another member's by then.

mod rig;

use dwell_conformance::servers::kafka::KafkaServer;
use dwell_core::Clock as _;
use dwell_kafka::Ladder;
use rdkafka::{
    ClientConfig,
    admin::{NewTopic, TopicReplication},
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use rig::scene::{SECOND, Scene};
use std::collections::BTreeSet;

const COUNT: usize = 12_000;
const BYTES: usize = 2_000;
/// The library has up to five batches of 1 MB on one connection, and these are not purged.
const MOST_TWICE: usize = COUNT / 2;

#[tokio::test(flavor = "multi_thread")]
async fn records_in_the_producer_are_not_sent_after_a_hang() {
    let server = KafkaServer::start().unwrap();
    let mut scene = Scene::at(&server.address()).await;
    let target = "orders";
    scene.create(&NewTopic::new(target, 2, TopicReplication::Fixed(1))).await;
    // The records wait in memory, all of them.
    scene.settings.relay.ladder = Ladder::parse("15s").unwrap();
    let relay = scene.relay();
    let due = scene.delay_topic("due");
    scene.wait_for(&due).await;
    // The relay knows the target, and the producer is connected.
    let headers = [("x-target-topic", target.to_owned()), ("x-process-at", scene.now().to_string())];
    scene.write(&due, "first", &headers, "x");
    scene.read(target, 1).await;
    let at = scene.now() + 12_000;
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &scene.address)
        .set("queue.buffering.max.messages", "1000000")
        .create()
        .unwrap();
    let body = "x".repeat(BYTES);
    for n in 0..COUNT {
        let headers = OwnedHeaders::new()
            .insert(Header { key: "x-target-topic", value: Some(target) })
            .insert(Header { key: "x-process-at", value: Some(&at.to_string()) });
        let key = n.to_string();
        let record = BaseRecord::to(&due).key(&key).payload(&body).headers(headers);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(SECOND * 10).unwrap();
    let counts = relay.counts.clone();
    scene.until("the relay holds them", || counts.tally().held == COUNT as u64).await;
    assert!(scene.now() < at - 200, "the machine is too slow: they are due");
    scene.clock.sleep(std::time::Duration::from_millis((at - 100 - scene.now()) as u64)).await;
    server.freeze().unwrap();
    scene.clock.sleep(rig::SESSION + SECOND * 3).await;
    server.thaw().unwrap();
    let keys = || scene.list(target, "%k");
    // The relay may have put them back for as long as its only level.
    for tries in 0.. {
        let arrived = keys().into_iter().collect::<BTreeSet<_>>().len();
        if arrived == COUNT + 1 {
            break;
        }
        assert!(tries < 60, "{arrived} of {COUNT} arrived: {:?}", counts.tally());
        scene.clock.sleep(SECOND).await;
    }
    relay.stop().await;
    let twice = keys().len() - COUNT - 1;
    println!("{twice} of {COUNT} arrived twice");
    assert!(twice <= MOST_TWICE, "{twice} arrived twice");
}
