//! Throughput of sending, and of receiving with settlements.

use crate::{Place, Scale, message, raw};
use dwell_bench::Output;
use dwell_core::{
    Action, Address, Consumer, Delivery, Envelope, Message, Note, OnMissing, Outcome, Producer, Seams,
    Settle, Subscription, Transport,
};
use dwell_kafka::Kafka;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const BATCH: usize = 1000;

/// A topic with a subscription.
struct Scene {
    kafka: Kafka,
    mail: Subscription,
    messages: Vec<Message>,
}

impl Scene {
    async fn new(place: &Place, count: usize) -> Self {
        let seams = Seams::system("bench");
        let topic = format!("bench-{}", seams.incarnation);
        let kafka = Kafka::connect(place.settings(&seams, "5s"), seams.clone()).await.expect("a connection");
        let mail = Subscription::new(topic, "mail");
        kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.expect("topics");
        let messages = (0..count).map(|_| message(&seams)).collect();
        Self { kafka, mail, messages }
    }

    async fn send(&self) -> f64 {
        let producer: Arc<dyn Producer> = self.kafka.producer().await.expect("a producer");
        let to = Address::Topic(self.mail.topic.clone());
        let all: Vec<_> =
            self.messages.iter().map(|message| Envelope::new(to.clone(), message.clone())).collect();
        // Send one message first, as the bare client does, so that connecting is not measured.
        producer.send(&all[..1]).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
        let start = Instant::now();
        for batch in all.chunks(BATCH) {
            producer.send(batch).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
        }
        all.len() as f64 / start.elapsed().as_secs_f64()
    }

    /// Measures from joining the group to having left it, as for the bare client. The last commit
    /// is included, and prefetched messages give no head start. With so many messages, joining
    /// hardly matters.
    async fn receive(&self) -> f64 {
        let (start, mut count) = (Instant::now(), 0);
        let consumer: Arc<dyn Consumer> = self.kafka.consumer(self.mail.clone()).await.expect("a consumer");
        while count < self.messages.len() {
            let batch = consumer.receive(BATCH, Duration::from_secs(10), None).await.expect("a batch");
            count += batch.len();
            settle(&*consumer, batch).await;
        }
        consumer.close().await.expect("the consumer leaves");
        count as f64 / start.elapsed().as_secs_f64()
    }
}

/// Settles deliveries as handled.
pub(crate) async fn settle(consumer: &dyn Consumer, batch: Vec<Delivery>) {
    let note = || Note { outcome: Outcome::Handled, error: None, worker: "bench".into(), moved_to: None };
    let settles = batch.into_iter().map(|delivery| Settle { delivery, action: Action::ACK, note: note() });
    assert!(consumer.settle(settles.collect()).await.is_empty());
}

pub(crate) async fn sends(output: &Output, scale: &Scale, place: &Place) {
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        let scene = Scene::new(place, scale.messages).await;
        let ours = scene.send().await;
        let (address, topic) = (place.address.clone(), scene.mail.topic.clone());
        let messages = scene.messages.clone();
        let raw = tokio::task::spawn_blocking(move || raw::sends(&address, &topic, &messages, BATCH)).await;
        rounds.push((ours, raw.expect("the bare client sends")));
        scene.kafka.close().await.expect("the connection closes");
    }
    output.rates(&format!("sends, batches of {BATCH} / bare, the same"), rounds);
}

pub(crate) async fn receives(output: &Output, scale: &Scale, place: &Place) {
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        let scene = Scene::new(place, scale.backlog).await;
        scene.send().await;
        let ours = scene.receive().await;
        let (address, topic) = (place.address.clone(), scene.mail.topic.to_string());
        let (group, count) = (format!("{topic}-raw"), scene.messages.len());
        let raw =
            tokio::task::spawn_blocking(move || raw::receives(&address, &topic, &group, count, BATCH)).await;
        rounds.push((ours, raw.expect("the bare client receives")));
        scene.kafka.close().await.expect("the connection closes");
    }
    output.rates(&format!("receives and settlements, batches of {BATCH} / bare, the same"), rounds);
}
