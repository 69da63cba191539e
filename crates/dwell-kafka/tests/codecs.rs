//! Batches of other clients: in every compression codec, and unreadable ones.

mod rig;

use dwell_core::{Clock, Measured, OnMissing, Subscription, Transport};
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use rig::scene::{SECOND, Scene};
use std::collections::BTreeSet;

const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
/// Number of records in one batch.
const EACH: usize = 20;

/// Writes a batch in each codec, one after the other.
fn write(address: &str, topic: &str, headers: &[(&str, String)]) {
    for codec in CODECS {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address).set("linger.ms", "100").set("compression.codec", codec);
        let producer: BaseProducer = config.create().unwrap();
        for number in 0..EACH {
            let key = format!("{codec}-{number}");
            let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            let body = "x".repeat(200);
            let record = BaseRecord::to(topic).partition(0).key(&key).payload(&body).headers(headers);
            assert!(producer.send(record).is_ok());
        }
        producer.flush(SECOND * 10).unwrap();
    }
}

fn all() -> BTreeSet<String> {
    CODECS.iter().flat_map(|codec| (0..EACH).map(move |number| format!("{codec}-{number}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_every_codec_pass_through_the_relay_and_a_consumer() {
    let scene = Scene::new().await;
    let topic = format!("codecs-{}", scene.mark);
    let mail = Subscription::new(topic.clone(), "mail");
    scene.kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let relay = scene.relay();
    let shelf = scene.delay_topic("1s");
    scene.wait_for(&shelf).await;
    let due = (scene.now() + 1_000).to_string();
    write(&scene.address, &shelf, &[("x-target-topic", topic.clone()), ("x-process-at", due)]);
    write(&scene.address, &topic, &[]);
    let consumer = scene.kafka.consumer(mail).await.unwrap();
    let (mut keys, mut count, start) = (BTreeSet::new(), 0, scene.clock.elapsed());
    while count < CODECS.len() * EACH * 2 && scene.clock.elapsed() - start < SECOND * 40 {
        for delivery in consumer.receive(100, SECOND, None).await.unwrap() {
            let key = delivery.message.key.as_ref().expect("every record has a key");
            keys.insert(String::from_utf8_lossy(key).into_owned());
            count += 1;
            assert!(rig::ack(&consumer, delivery).await.is_empty());
        }
    }
    assert_eq!((keys, count), (all(), CODECS.len() * EACH * 2));
    relay.stop().await;
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_batch_stops_its_partition_and_is_reported() {
    let scene = Scene::new().await;
    let topic = format!("unreadable-{}", scene.mark);
    let mail = Subscription::new(topic.clone(), "mail");
    scene.kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    rig::raw::put_unreadable(&scene.address, &topic, 0);
    // One record after it, and one in the other partition.
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", &scene.address).create().unwrap();
    for partition in [0, 1] {
        let key = partition.to_string();
        let sent = producer.send(BaseRecord::to(&topic).partition(partition).key(&key).payload("x"));
        assert!(sent.is_ok());
    }
    producer.flush(SECOND * 10).unwrap();
    let consumer = scene.kafka.consumer(mail).await.unwrap();
    let mut others = vec![];
    let said = || rig::log::lines(&["ERROR", "batch cannot be read", &topic, "partition=0", "offset=0"]);
    let start = scene.clock.elapsed();
    let is_troubled = async || {
        let measures = scene.kafka.measures().await.unwrap();
        let troubled = measures.into_iter().find(|measure| measure.name == "kafka_troubled").unwrap();
        troubled.value == Measured::GaugeOfTopics(vec![(topic.clone(), 1)])
    };
    while said().is_empty() || others.is_empty() || !is_troubled().await {
        assert!(scene.clock.elapsed() - start < SECOND * 40, "{said:?} {others:?}", said = said());
        for delivery in consumer.receive(10, SECOND / 2, None).await.unwrap() {
            others.push(String::from_utf8_lossy(delivery.message.key.as_ref().unwrap()).into_owned());
            assert!(rig::ack(&consumer, delivery).await.is_empty());
        }
    }
    assert_eq!(others, ["1"], "only the other partition continues");
    assert_eq!(said().len(), 1, "the error is logged once");
    assert!(said()[0].contains("--reset-offsets"), "{:?}", said());
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_cannot_read_a_batch_reports_it_and_ends_with_an_error() {
    let scene = Scene::new().await;
    let target = scene.topic("target").await;
    let relay = scene.relay();
    let shelf = scene.delay_topic("1s");
    scene.wait_for(&shelf).await;
    rig::raw::put_unreadable(&scene.address, &shelf, 0);
    let is_told = || relay.counts.tally().troubled.get(&shelf).is_some_and(|why| why.contains("partition 0"));
    scene.until("the relay reports the batch", is_told).await;
    let due = (scene.now() + 300).to_string();
    scene.write(
        &scene.delay_topic("due"),
        "k",
        &[("x-target-topic", target.clone()), ("x-process-at", due)],
        "x",
    );
    assert_eq!(scene.read(&target, 1).await.len(), 1, "the other levels continue");
    assert_eq!(relay.counts.tally().replaced, 0, "another client would not help");
    let error = relay.end().await.unwrap_err().to_string();
    assert!(error.contains(&shelf) && error.contains("cannot be read"), "{error}");
}
