//! Adopting a default subscription: the first declared subscription of a topic that keeps messages
//! continues where the default subscription was, with all messages for it, now and later.

mod rig;

use dwell_core::{
    Address, Consumer, Delivery, Due, Envelope, ErrorKind, Message, OnMissing, Seams, Subscription, Topic,
    Transport,
};
use dwell_kafka::Kafka;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rig::scene::{SECOND, Scene};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const NOW: Due = Due::After(Duration::ZERO);

async fn connect(scene: &Scene) -> Kafka {
    Kafka::connect(scene.settings.clone(), Seams::system("adopting")).await.unwrap()
}

/// Creates a topic that keeps messages. Returns its default subscription.
async fn kept() -> (Scene, Kafka, Subscription) {
    let mut scene = Scene::new().await;
    scene.settings.partitions = 1;
    let (kafka, topic) = (connect(&scene).await, format!("jobs-{}", scene.mark));
    kafka.provision(&[Topic::named(topic.clone()).keep()], &[], OnMissing::Create).await.unwrap();
    (scene, kafka, Subscription::new(topic.clone(), topic))
}

async fn subscribe(kafka: &Kafka, subscriptions: &[Subscription]) {
    kafka.provision(&[], subscriptions, OnMissing::Create).await.unwrap();
}

async fn send(kafka: &Kafka, to: Address, id: &str, due: Due) {
    let envelope = Envelope::new(to, Message::new(id, "t", "x")).due(due);
    kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
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

/// Sends a last message to the topic and to each of these names. Returns the ids of all messages
/// that arrive before them, sorted.
async fn all(kafka: &Kafka, consumer: &Arc<dyn Consumer>, names: &[&Subscription]) -> Vec<String> {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    let last = format!("last-{}", LAST.fetch_add(1, Ordering::SeqCst));
    send(kafka, Address::topic(names[0].topic.clone()), &last, NOW).await;
    for name in names {
        send(kafka, name.address(), &last, NOW).await;
    }
    let mut came = vec![];
    while came.iter().filter(|id| **id == last).count() <= names.len() {
        for delivery in receive(consumer, 1).await {
            came.push(delivery.message.id.0.to_string());
            assert!(rig::ack(consumer, delivery).await.is_empty());
        }
    }
    came.retain(|id| !id.starts_with("last"));
    came.sort_unstable();
    came
}

/// Reads ten messages of the topic and ten for the default subscription alone, and leaves two of
/// each unsettled.
async fn read_some(kafka: &Kafka, own: &Subscription) {
    let consumer = kafka.consumer(own.clone()).await.unwrap();
    for n in 0..10 {
        for (to, id) in [(Address::topic(own.topic.clone()), "of-all"), (own.address(), "its-own")] {
            send(kafka, to, &format!("{id}-{n}"), NOW).await;
        }
    }
    for delivery in receive(&consumer, 20).await {
        if !LEFT.contains(&&*delivery.message.id.0) {
            assert!(rig::ack(&consumer, delivery).await.is_empty());
        }
    }
    consumer.close().await.unwrap();
}

const LEFT: [&str; 4] = ["its-own-0", "its-own-7", "of-all-0", "of-all-5"];

#[tokio::test(flavor = "multi_thread")]
async fn the_adopter_gets_exactly_the_unsettled_messages() {
    let (_scene, kafka, own) = kept().await;
    read_some(&kafka, &own).await;
    // The second subscription of the same call adopts nothing: it gets the messages of the topic,
    // and none that were for the default subscription alone.
    let [mail, audit] = ["mail", "audit"].map(|name| Subscription::new(own.topic.clone(), name));
    subscribe(&kafka, &[mail.clone(), audit.clone()]).await;
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &consumer, &[&mail, &own]).await, LEFT);
    let consumer = kafka.consumer(audit.clone()).await.unwrap();
    let came = all(&kafka, &consumer, &[&audit]).await;
    assert!(came.iter().all(|id| id.starts_with("of-all")), "{came:?}");
    // A reader of the default subscription would get all messages once more.
    for on_missing in [OnMissing::Assume, OnMissing::Validate] {
        let kept = std::slice::from_ref(&own);
        let checked = kafka.provision(&[], kept, on_missing).await;
        assert_eq!(checked.is_ok(), on_missing == OnMissing::Assume, "{checked:?}");
        let error = kafka.consumer(own.clone()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("`mail`"), "{error}");
    }
    kafka.close().await.unwrap();
}

/// Another process has created the retry topic and was slow, or died, before it wrote its entry.
/// Both programs take over from it.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_adopters_get_each_retry_once() {
    let (scene, kafka, own) = kept().await;
    read_some(&kafka, &own).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    let retries = format!("dwell.retry.{}.mail", own.topic);
    let new = NewTopic::new(&retries, 1, TopicReplication::Fixed(1));
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let other = connect(&scene).await;
    let both = std::slice::from_ref(&mail);
    tokio::join!(subscribe(&kafka, both), subscribe(&other, both));
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &consumer, &[&mail, &own]).await, LEFT);
    kafka.close().await.unwrap();
}

/// The first subscription takes some seconds, because another process has created its retry topic
/// and died before it wrote its entry.
#[tokio::test(flavor = "multi_thread")]
async fn a_default_subscription_created_during_provisioning_is_adopted() {
    let (scene, kafka, own) = kept().await;
    let [slow, mail] =
        [format!("slow-{}", scene.mark), own.topic.to_string()].map(|topic| Subscription::new(topic, "mail"));
    let retries = format!("dwell.retry.{}.mail", slow.topic);
    let new = NewTopic::new(&retries, 1, TopicReplication::Fixed(1));
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let other = connect(&scene).await;
    let reading = async {
        scene.wait_for(&slow.topic).await;
        let reader = kafka.consumer(own.clone()).await.unwrap();
        send(&kafka, own.address(), "its-own", NOW).await;
        reader.close().await.unwrap();
    };
    let both = [slow.clone(), mail.clone()];
    tokio::join!(subscribe(&other, &both), reading);
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &consumer, &[&mail, &own]).await, ["its-own"]);
    kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_messages_of_an_adopted_subscription_reach_its_adopter() {
    let (scene, kafka, own) = kept().await;
    kafka.consumer(own.clone()).await.unwrap().close().await.unwrap();
    send(&kafka, own.address(), "waits", Due::After(SECOND)).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    subscribe(&kafka, std::slice::from_ref(&mail)).await;
    // The message becomes due only now, by a relay that knows nothing of the adoption.
    let relay = scene.relay();
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(&*receive(&consumer, 1).await[0].message.id.0, "waits");
    // A producer may still use the old name.
    send(&kafka, own.address(), "late", NOW).await;
    assert_eq!(&*receive(&consumer, 1).await[0].message.id.0, "late");
    assert_eq!(scene.count(&scene.delay_topic("parked")), 0);
    relay.stop().await;
    kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_an_adopted_subscription_is_closed_with_the_reason() {
    let (_scene, kafka, own) = kept().await;
    let reader = kafka.consumer(own.clone()).await.unwrap();
    send(&kafka, Address::topic(own.topic.clone()), "before", NOW).await;
    let held = receive(&reader, 1).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    subscribe(&kafka, std::slice::from_ref(&mail)).await;
    // The reader receives nothing else until then.
    let error = reader.receive(1, SECOND * 30, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    drop(held);
    let error = kafka.consumer(own.clone()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &consumer, &[&mail, &own]).await, ["before"]);
    kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn declaring_the_default_subscription_takes_its_name_back() {
    let (_scene, kafka, own) = kept().await;
    read_some(&kafka, &own).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    subscribe(&kafka, std::slice::from_ref(&mail)).await;
    let adopter = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &adopter, &[&mail, &own]).await, LEFT);
    adopter.close().await.unwrap();
    subscribe(&kafka, std::slice::from_ref(&own)).await;
    send(&kafka, own.address(), "its-own-again", NOW).await;
    let consumer = kafka.consumer(own.clone()).await.unwrap();
    let mut came = all(&kafka, &consumer, &[&own]).await;
    came.retain(|id| id.starts_with("its-own"));
    assert_eq!(came, ["its-own-again"], "messages that the adopter settled stay settled");
    let adopter = kafka.consumer(mail.clone()).await.unwrap();
    let mut came = all(&kafka, &adopter, &[&mail]).await;
    came.retain(|id| id.starts_with("its-own"));
    assert_eq!(came, Vec::<String>::new());
    assert!(adopter.receive(1, SECOND, None).await.unwrap().is_empty());
    kafka.close().await.unwrap();
}
