//! A broker that becomes unavailable: nothing hangs, and everything continues when it is back.

mod rig;

use dwell_conformance::servers::kafka::KafkaServer;
use dwell_core::{
    Address, Clock, Consumer, Delivery, Envelope, Message, OnMissing, Seams, Subscription, SystemClock,
    Transport,
};
use dwell_kafka::{Kafka, KafkaSettings};
use std::{sync::Arc, time::Duration};

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    server: KafkaServer,
    kafka: Kafka,
    mail: Subscription,
    clock: SystemClock,
}

impl Scene {
    async fn new() -> Self {
        Self::with("orders", rig::SESSION).await
    }

    async fn with(topic: &str, session: Duration) -> Self {
        let server = KafkaServer::start().unwrap();
        let mut settings = KafkaSettings::at(server.address());
        (settings.partitions, settings.session, settings.send_timeout) = (1, session, SECOND * 3);
        let kafka = Kafka::connect(settings, Seams::system("away")).await.unwrap();
        let mail = Subscription::new(topic, "mail");
        kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        Self { server, kafka, mail, clock: SystemClock::new() }
    }

    async fn send(&self, id: &str) -> dwell_core::Result<()> {
        let envelope = Envelope::new(Address::topic(self.mail.topic.clone()), Message::new(id, "t", "x"));
        self.kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).map(drop)
    }

    async fn one(&self, consumer: &Arc<dyn Consumer>) -> Delivery {
        consumer.receive(1, SECOND * 30, None).await.unwrap().pop().expect("a message arrives")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_fails_in_time_and_works_again_when_the_broker_is_back() {
    let mut scene = Scene::new().await;
    scene.send("before").await.unwrap();
    scene.server.kill();
    let start = scene.clock.elapsed();
    let error = scene.send("lost").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(scene.clock.elapsed() - start < SECOND * 10, "{error}");
    scene.server.resume().unwrap();
    let start = scene.clock.elapsed();
    while let Err(error) = scene.send("after").await {
        assert!(error.is_retryable() && scene.clock.elapsed() - start < SECOND * 60, "{error}");
    }
    let consumer = scene.kafka.consumer(scene.mail.clone()).await.unwrap();
    assert_eq!(&*scene.one(&consumer).await.message.id.0, "before");
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_handed_out_while_no_broker_is_available() {
    rig::log::keep();
    // Longer than the outage, so that the consumer keeps its partitions and prefetched messages.
    let mut scene = Scene::with("bills", SECOND * 60).await;
    for id in ["a", "b", "c"] {
        scene.send(id).await.unwrap();
    }
    let consumer = scene.kafka.consumer(scene.mail.clone()).await.unwrap();
    let first = scene.one(&consumer).await;
    scene.server.kill();
    let start = scene.clock.elapsed();
    while rig::log::lines(&["Kafka consumer reports an error", "AllBrokersDown", "bills"]).is_empty() {
        assert!(scene.clock.elapsed() - start < SECOND * 60, "the consumer does not notice the outage");
        scene.clock.sleep(SECOND / 20).await;
    }
    assert_eq!(
        consumer.receive(10, SECOND, None).await.unwrap().len(),
        0,
        "settlements could not be committed now"
    );
    scene.server.resume().unwrap();
    assert!(rig::ack(&consumer, first).await.is_empty());
    for id in ["b", "c"] {
        let next = scene.one(&consumer).await;
        assert_eq!(&*next.message.id.0, id);
        assert!(rig::ack(&consumer, next).await.is_empty());
    }
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_does_not_wait_for_an_unavailable_broker() {
    let mut scene = Scene::new().await;
    scene.send("a").await.unwrap();
    let consumer = scene.kafka.consumer(scene.mail.clone()).await.unwrap();
    let delivery = scene.one(&consumer).await;
    scene.server.kill();
    assert!(rig::ack(&consumer, delivery).await.is_empty());
    let start = scene.clock.elapsed();
    scene.kafka.close().await.unwrap();
    let took = scene.clock.elapsed() - start;
    assert!(took < SECOND * 20, "it took {took:?}");
}

/// librdkafka queues events until they are polled.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_an_idle_client_are_polled() {
    rig::log::keep();
    let mut server = KafkaServer::start().unwrap();
    let kafka = Kafka::connect(rig::settings(&server.address()), Seams::system("away")).await.unwrap();
    let (clock, address) = (SystemClock::new(), server.address());
    let heard = || rig::log::lines(&["Kafka client reports an error", &address]).len();
    let before = heard();
    server.kill();
    let start = clock.elapsed();
    while heard() == before {
        assert!(clock.elapsed() - start < SECOND * 60, "the event is not polled");
        clock.sleep(SECOND / 10).await;
    }
    kafka.close().await.unwrap();
}
