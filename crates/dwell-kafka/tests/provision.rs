//! Provisioning: what is created, checked first, and refused.

mod rig;

use dwell_core::{
    Address, Clock as _, Consumer, Delivery, Due, Envelope, Error, ErrorKind, Message, OnMissing, Result,
    Seams, Subscription, Transport,
};
use dwell_kafka::Kafka;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminOptions, NewTopic, TopicReplication},
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use rig::scene::{SECOND, Scene};
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

async fn connect(scene: &Scene) -> Kafka {
    Kafka::connect(scene.settings.clone(), Seams::system("provision")).await.unwrap()
}

async fn make(scene: &Scene, topic: NewTopic<'_>) {
    scene.admin().create_topics([&topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
}

async fn send(kafka: &Kafka, to: Address, id: &str, due: Due) -> Result<()> {
    let envelope = Envelope::new(to, Message::new(id, "t", "x")).due(due);
    kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).map(drop)
}

/// Creates a delay topic that drops records after a minute.
async fn delay_topic_with_short_retention() -> (Scene, String) {
    let scene = Scene::new().await;
    let topic = scene.delay_topic("2s");
    let expires = NewTopic::new(&topic, 1, TopicReplication::Fixed(1))
        .set("message.timestamp.type", "LogAppendTime")
        .set("retention.ms", "60000");
    make(&scene, expires).await;
    (scene, topic)
}

fn names_the_setting(error: &Error, topic: &str) {
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    for named in [topic, "retention.ms=60000"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delay_topics_that_lose_records_are_refused_before_anything_is_created() {
    let (scene, topic) = delay_topic_with_short_retention().await;
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    for on_missing in [OnMissing::Validate, OnMissing::Create] {
        let refused = scene.kafka.provision(&[], std::slice::from_ref(&mail), on_missing).await;
        names_the_setting(&refused.unwrap_err(), &topic);
    }
    let error = connect(&scene).await.consumer(mail).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // `Assume` does not check the topic; the relay will.
    scene.kafka.provision(&[], &[], OnMissing::Assume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sending_to_a_delay_topic_that_loses_records_is_refused() {
    let (scene, topic) = delay_topic_with_short_retention().await;
    let target = format!("orders-{}", scene.mark);
    for name in [&target, &scene.delay_topic("1s")] {
        let new = NewTopic::new(name, 1, TopicReplication::Fixed(1));
        make(&scene, new.set("message.timestamp.type", "LogAppendTime").set("retention.ms", "-1")).await;
    }
    let to = Address::topic(target);
    // All delays are refused, because such a topic stops the relay.
    for wait in [SECOND, SECOND * 2, SECOND * 500] {
        let refused = send(&scene.kafka, to.clone(), "later", Due::After(wait)).await;
        names_the_setting(&refused.unwrap_err(), &topic);
    }
    send(&scene.kafka, to.clone(), "now", Due::After(Duration::ZERO)).await.unwrap();
    let assumes = connect(&scene).await;
    assumes.provision(&[], &[], OnMissing::Assume).await.unwrap();
    send(&assumes, to, "later", Due::After(SECOND)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_recreates_a_delay_topic_that_was_deleted_while_its_bus_runs() {
    let mut scene = Scene::new().await;
    scene.settings.relay_inside = true;
    // The client notices a deleted topic at once.
    for (name, value) in
        [("topic.metadata.propagation.max.ms", "0"), ("topic.metadata.refresh.interval.ms", "1000")]
    {
        scene.settings.properties.push((name.to_owned(), value.to_owned()));
    }
    // One connection, whose relay is restarted whenever it ends.
    let kafka = connect(&scene).await;
    let start = || {
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = Box::pin(async move { drop(stopped.await) });
        (stop, tokio::spawn(kafka.background(stopped).unwrap()))
    };
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("1s"));
    kafka.provision(&[], &[], OnMissing::Create).await.unwrap();
    let (_running, task) = start();
    send(&kafka, Address::topic(target.clone()), "before", Due::After(SECOND)).await.unwrap();
    scene.read(&target, 1).await;
    for gone in [&level, &scene.delay_topic("parked")] {
        scene.admin().delete_topics(&[gone.as_str()], &AdminOptions::new()).await.unwrap()[0]
            .as_ref()
            .unwrap();
    }
    scene.until("the relay ends", || task.is_finished()).await;
    let (stop, task) = start();
    scene.until("the topic is recreated", || topics(&scene).contains(&level) || task.is_finished()).await;
    assert!(!task.is_finished(), "{:?}", task.await);
    // A client that has sent to the topic may cache its absence for a while.
    let start = scene.clock.elapsed();
    while let Err(error) = send(&kafka, Address::topic(target.clone()), "after", Due::After(SECOND)).await {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(scene.clock.elapsed() - start < SECOND * 40, "{error}");
        scene.clock.sleep(SECOND / 10).await;
    }
    scene.read(&target, 2).await;
    assert!(topics(&scene).contains(&scene.delay_topic("parked")));
    drop(stop);
    task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn validating_names_all_missing_topics_at_once() {
    let scene = Scene::new().await;
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    let all = [format!("topic `{}`", mail.topic), format!("subscription `{}`", mail.address())];
    let levels = ["1s", "2s", "due", "parked"].map(|level| format!("`{}`", scene.delay_topic(level)));
    let error = scene.kafka.provision(&[], &[mail], OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for missing in all.iter().chain(&levels) {
        assert!(error.to_string().contains(missing), "{missing}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_that_would_share_a_group_conflict_before_anything_is_created() {
    let scene = Scene::new().await;
    let name = format!("a-{}", scene.mark);
    let (one, other) = (Subscription::new(format!("{name}.b"), "c"), Subscription::new(name.clone(), "b.c"));
    let ours = || {
        let mut topics = topics(&scene);
        topics.retain(|topic| topic.contains(&scene.mark));
        topics.sort_unstable();
        topics
    };
    let refused = async |subscriptions: &[Subscription]| {
        let error = scene.kafka.provision(&[], subscriptions, OnMissing::Create).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        for named in [&one.address(), &other.address()] {
            assert!(error.to_string().contains(&format!("`{named}`")), "{error}");
        }
    };
    refused(&[one.clone(), other.clone()]).await;
    assert_eq!(ours(), Vec::<String>::new());
    scene.kafka.provision(&[], std::slice::from_ref(&one), OnMissing::Create).await.unwrap();
    let made = ours();
    refused(std::slice::from_ref(&other)).await;
    assert_eq!(ours(), made);
    assert!(made.contains(&one.topic.to_string()) && !made.contains(&name), "{made:?}");
}

/// Another process has committed the initial offsets and was slow, or died, before it wrote its
/// entry. The retry topic exists or does not: the process that creates it may be slower than the
/// one that takes over.
#[tokio::test(flavor = "multi_thread")]
async fn completing_the_subscription_of_another_process_skips_no_message() {
    let mut scene = Scene::new().await;
    scene.settings.partitions = 1;
    for retries_are_there in [false, true] {
        let topic = scene.topic(&format!("orders-{retries_are_there}")).await;
        let mail = Subscription::new(topic.clone(), "mail");
        let group = format!("{topic}.mail");
        let retries = format!("dwell.retry.{group}");
        if retries_are_there {
            make(&scene, NewTopic::new(&retries, 1, TopicReplication::Fixed(1))).await;
        }
        commit_initial_offsets(&scene, &group, &topic);
        let kafka = connect(&scene).await;
        send(&kafka, Address::topic(topic), "between", Due::After(Duration::ZERO)).await.unwrap();
        kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        let consumer = kafka.consumer(mail).await.unwrap();
        let came = receive(&consumer, 1).await;
        assert_eq!(&*came[0].message.id.0, "between");
        kafka.close().await.unwrap();
    }
}

/// Receives this number of deliveries, without settling them.
async fn receive(consumer: &Arc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut all = vec![];
    while all.len() < count {
        let batch = consumer.receive(count - all.len(), SECOND * 30, None).await.unwrap();
        assert!(!batch.is_empty(), "{} of {count} arrived", all.len());
        all.extend(batch);
    }
    all
}

fn bare(scene: &Scene, group: &str) -> BaseConsumer {
    ClientConfig::new().set("bootstrap.servers", &scene.address).set("group.id", group).create().unwrap()
}

/// Returns the names of all topics.
fn topics(scene: &Scene) -> Vec<String> {
    let metadata = bare(scene, "nobody").fetch_metadata(None, SECOND * 10).unwrap();
    metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
}

fn commit_initial_offsets(scene: &Scene, group: &str, topic: &str) {
    let client = bare(scene, group);
    let count = client.fetch_metadata(Some(topic), SECOND * 10).unwrap().topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    for partition in 0..count as i32 {
        list.add_partition_offset(topic, partition, Offset::Offset(0)).unwrap();
    }
    // A broker that gets its first group takes a moment.
    for _ in 0..50 {
        if client.commit(&list, CommitMode::Sync).is_ok() {
            return;
        }
    }
    panic!("the offsets could not be committed");
}
