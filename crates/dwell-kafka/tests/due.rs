//! Due times: what consumers get, and how punctual the relay is.

mod rig;

use dwell_conformance::Foreign;
use dwell_core::{
    Address, Consumer, Delivery, Due, Envelope, Headers, Message, OnMissing, Subscription, Timestamp,
    Transport, wire,
};
use dwell_kafka::Ladder;
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rig::{
    Foreigner,
    scene::{SECOND, Scene},
};
use std::{collections::BTreeMap, sync::Arc};

/// Creates a subscription and its consumer.
async fn receiver(scene: &Scene) -> (Subscription, Arc<dyn Consumer>) {
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    scene.kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let consumer = scene.kafka.consumer(mail.clone()).await.unwrap();
    (mail, consumer)
}

/// Receives this number of messages, by body.
async fn receive(consumer: &Arc<dyn Consumer>, count: usize) -> BTreeMap<String, Delivery> {
    let mut all = BTreeMap::new();
    while all.len() < count {
        let batch = consumer.receive(10, SECOND * 40, None).await.unwrap();
        assert!(!batch.is_empty(), "only {} of {count} arrived", all.len());
        for delivery in batch {
            all.insert(String::from_utf8(delivery.message.body.to_vec()).unwrap(), delivery);
        }
    }
    all
}

fn foreign(headers: &[(&str, String)], body: &str) -> Foreign {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    Foreign { key: None, headers: Headers::from_iter(headers), body: body.to_owned().into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_sent_directly_is_due_at_its_timestamp() {
    const AT: i64 = 1_700_000_000_123;
    let scene = Scene::new().await;
    let (mail, consumer) = receiver(&scene).await;
    // As Dwell writes it, as any client may, and with a header that only has a meaning in a record
    // from a delay topic.
    let ours = [
        (wire::ID, "order-42"),
        (wire::TYPE, "orders.placed"),
        (wire::CONTENT_TYPE, "application/json"),
        (wire::SENT_AT, "5"),
        (wire::HANDLED_COUNT, "0"),
        (wire::FAILED_COUNT, "0"),
    ];
    let ours = ours.map(|(name, value)| (name, value.to_owned()));
    let theirs = [("x-process-at", "12345".to_owned())];
    let all = [foreign(&ours, "ours"), foreign(&[], "anybody's"), foreign(&theirs, "theirs")];
    let writer = Foreigner::new(&scene.address).unwrap();
    for (message, at) in all.iter().zip(AT..) {
        writer.write(&mail.topic, message, Some(at)).unwrap();
    }
    writer.flush().unwrap();
    let received = receive(&consumer, all.len()).await;
    for (body, at) in ["ours", "anybody's", "theirs"].into_iter().zip(AT..) {
        assert_eq!(received[body].due, Some(Timestamp(at)), "{body}");
    }
    assert_eq!(received["theirs"].message.headers.get_text("x-process-at"), Some("12345"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_from_a_delay_topic_is_due_at_its_process_time() {
    let scene = Scene::new().await;
    let (mail, consumer) = receiver(&scene).await;
    let relay = scene.relay();
    scene.wait_for(&scene.delay_topic("1s")).await;
    let at = scene.now() + 1_500;
    let headers = [("x-target-topic", mail.topic.to_string()), ("x-process-at", at.to_string())];
    let writer = Foreigner::new(&scene.address).unwrap();
    // The append time of a delay topic replaces the timestamp of the sender.
    writer.write(&scene.delay_topic("1s"), &foreign(&headers, "theirs"), Some(5)).unwrap().flush().unwrap();
    let ours = Message::new("order-42", "orders.placed", "ours").with(|message| {
        message.sent_at = Some(Timestamp(at));
    });
    let ours = Envelope::new(Address::Topic(mail.topic.clone()), ours).due(Due::At(Timestamp(at + 1)));
    scene.kafka.producer().await.unwrap().send(&[ours]).await.remove(0).unwrap();
    let received = receive(&consumer, 2).await;
    for (body, due) in [("theirs", at), ("ours", at + 1)] {
        assert_eq!(received[body].due, Some(Timestamp(due)), "{body}");
        for header in ["x-process-at", "x-original-timestamp", "x-target-topic"] {
            assert_eq!(received[body].message.headers.get(header), None, "{body}");
        }
    }
    relay.stop().await;
}

/// Maximum lateness of the most punctual of many records, in milliseconds. A busy machine makes
/// some of them late, but never all.
const PUNCTUAL: i64 = 3;

/// Each record leaves its level with a short remaining delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_leaves_a_level_is_forwarded_on_the_millisecond() {
    assert_punctual("2s", 2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_the_last_stretch_is_forwarded_on_the_millisecond() {
    assert_punctual("due", 1_000).await;
}

/// Sends many records that are due one after the other, beginning after this time in milliseconds.
/// Checks that the most punctual one is on time.
async fn assert_punctual(level: &str, from: i64) {
    const COUNT: i64 = 50;
    // The remaining delay is waited for in memory, and in no other level.
    const APART: i64 = 18;
    let mut scene = Scene::new().await;
    scene.settings.relay.ladder = Ladder::parse("2s").unwrap();
    let (target, level) = (format!("orders-{}", scene.mark), scene.delay_topic(level));
    let new = NewTopic::new(&target, 1, TopicReplication::Fixed(1));
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let message = |at: i64| {
        foreign(&[("x-target-topic", target.clone()), ("x-process-at", at.to_string())], &at.to_string())
    };
    let relay = scene.relay();
    scene.wait_for(&level).await;
    // This record is long due: when it arrives, the relay works and knows the target, and the
    // writer knows the level.
    let writer = Foreigner::new(&scene.address).unwrap();
    writer.write(&level, &message(1), None).unwrap().flush().unwrap();
    scene.read(&target, 1).await;
    let start = scene.now() + from;
    for n in 0..COUNT {
        writer.write(&level, &message(start + n * APART), None).unwrap();
    }
    writer.flush().unwrap();
    let read = scene.read(&target, COUNT as usize + 1).await;
    let late = read.iter().map(|(arrived, _, _, due)| arrived - due.parse::<i64>().unwrap());
    let mut late: Vec<_> = late.collect();
    late.sort_unstable();
    assert!((0..=PUNCTUAL).contains(&late[0]), "milliseconds late, or early: {late:?}");
    // A record can be read before its sender gets the confirmation.
    let counts = relay.counts.clone();
    relay.stop().await;
    let tally = counts.tally();
    assert_eq!((tally.forwarded, tally.shelved), (COUNT as u64 + 1, 0), "{tally:?}");
}
