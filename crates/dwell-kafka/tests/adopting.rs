//! A topic that keeps what nobody subscribed to, and the first who does: it goes on where the subscription of the topic's own name
//! was, with all that is for that one, then and later.

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

/// A topic that keeps, and the subscription of its own name.
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

/// So many, unsettled.
async fn receive(consumer: &Arc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut all = vec![];
    while all.len() < count {
        let batch = consumer.receive(count - all.len(), SECOND * 30, None).await.unwrap();
        assert!(!batch.is_empty(), "{} of {count} came", all.len());
        all.extend(batch);
    }
    all
}

/// What comes, sorted, up to one that is sent to its topic now, and one to each of these names.
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

/// Somebody has read ten of the topic and ten that were for it alone, and left two of each.
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
async fn who_adopts_what_nobody_subscribed_to_gets_what_is_not_settled_and_nothing_else() {
    let (_scene, kafka, own) = kept().await;
    read_some(&kafka, &own).await;
    // A second one in the same call is no heir: it has what the topic has, and nothing that was for another alone.
    let [mail, audit] = ["mail", "audit"].map(|name| Subscription::new(own.topic.clone(), name));
    subscribe(&kafka, &[mail.clone(), audit.clone()]).await;
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(all(&kafka, &consumer, &[&mail, &own]).await, LEFT);
    let consumer = kafka.consumer(audit.clone()).await.unwrap();
    let came = all(&kafka, &consumer, &[&audit]).await;
    assert!(came.iter().all(|id| id.starts_with("of-all")), "{came:?}");
    // Whoever reads under the topic's own name would have all of it once more.
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

/// Somebody has made the retry topic, and was slow, or died, before it said that it was done. Both take over from it.
#[tokio::test(flavor = "multi_thread")]
async fn two_who_adopt_at_one_time_have_each_retry_once() {
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

/// The first one takes some seconds, because somebody has made its retry topic, and died before it said that it was done.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_only_while_its_adopter_waits_for_others_is_adopted_as_well() {
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
async fn what_waits_for_a_subscription_that_is_adopted_comes_to_its_adopter() {
    let (scene, kafka, own) = kept().await;
    kafka.consumer(own.clone()).await.unwrap().close().await.unwrap();
    send(&kafka, own.address(), "waits", Due::After(SECOND)).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    subscribe(&kafka, std::slice::from_ref(&mail)).await;
    // It becomes due only now, and by a relay that knows nothing of it.
    let relay = scene.relay();
    let consumer = kafka.consumer(mail.clone()).await.unwrap();
    assert_eq!(&*receive(&consumer, 1).await[0].message.id.0, "waits");
    // Whoever still has the old name, and what is sent to it after that.
    send(&kafka, own.address(), "late", NOW).await;
    assert_eq!(&*receive(&consumer, 1).await[0].message.id.0, "late");
    assert_eq!(scene.count(&scene.delay_topic("parked")), 0);
    relay.stop().await;
    kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_there_while_another_adopts_is_closed_and_told_why() {
    let (_scene, kafka, own) = kept().await;
    let reader = kafka.consumer(own.clone()).await.unwrap();
    send(&kafka, Address::topic(own.topic.clone()), "before", NOW).await;
    let held = receive(&reader, 1).await;
    let mail = Subscription::new(own.topic.clone(), "mail");
    subscribe(&kafka, std::slice::from_ref(&mail)).await;
    // Nothing else comes to it until then.
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
async fn a_subscription_that_is_declared_later_has_its_own_name_back() {
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
    assert_eq!(came, ["its-own-again"], "what its adopter has settled is settled");
    let adopter = kafka.consumer(mail.clone()).await.unwrap();
    let mut came = all(&kafka, &adopter, &[&mail]).await;
    came.retain(|id| id.starts_with("its-own"));
    assert_eq!(came, Vec::<String>::new());
    assert!(adopter.receive(1, SECOND, None).await.unwrap().is_empty());
    kafka.close().await.unwrap();
}
