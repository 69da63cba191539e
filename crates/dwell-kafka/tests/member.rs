//! A client that logs in, creates topics with its settings, and stays in its group.

use dwell_conformance::servers::kafka::{KafkaServer, PASSWORD, USER};
use dwell_core::{
    Action, Address, Clock as _, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle, Subscription,
    SystemClock, Transport as _, TransportUrl,
};
use dwell_kafka::{Kafka, KafkaSettings};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, ConfigSource, ResourceSpecifier},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Connects with user and password. Topics have three partitions that keep records for two hours,
/// and the maximum poll interval is short.
#[tokio::test(flavor = "multi_thread")]
async fn an_authenticated_consumer_stays_a_member_while_a_handler_works() {
    let server = KafkaServer::start().unwrap();
    let url = format!(
        "kafka://{USER}:{PASSWORD}@{}?sasl=PLAIN&partitions=3&replication=1&session=3s&retention=2h",
        server.address_with_password()
    );
    let url = TransportUrl::parse(&url).unwrap();
    let mut settings = KafkaSettings::from_url(&url).unwrap();
    for (name, value) in [("max.poll.interval.ms", "4000"), ("session.timeout.ms", "3000")] {
        settings.properties.push((name.to_owned(), value.to_owned()));
    }
    let kafka = Kafka::connect(settings, Seams::system("member")).await.unwrap();
    let mut mail = Subscription::new("orders", "mail");
    mail.invalid = Some(Address::topic("orders.invalid"));
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let envelope = Envelope::new(Address::topic("orders"), Message::new("a", "t", "x"));
    kafka.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();

    let bare: BaseConsumer = ClientConfig::new().set("bootstrap.servers", server.address()).create().unwrap();
    let metadata = bare.fetch_metadata(Some("orders"), SECOND * 10).unwrap();
    assert_eq!(metadata.topics()[0].partitions().len(), 3);
    assert!(metadata.topics()[0].partitions().iter().all(|partition| partition.replicas().len() == 1));

    // Topics with limited and with unlimited retention.
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", server.address()).create().unwrap();
    let for_a_while = [("retention.ms", "7200000")];
    let for_ever = [("retention.ms", "-1"), ("retention.bytes", "-1"), ("cleanup.policy", "delete")];
    let kept = [
        ("orders", &for_a_while[..]),
        ("dwell.retry.orders.mail", &for_a_while),
        ("orders.dlq", &for_ever),
        ("orders.invalid", &for_ever),
        ("delay-parked", &for_ever),
    ];
    let topics = kept.map(|(topic, _)| ResourceSpecifier::Topic(topic));
    let found = admin.describe_configs(&topics, &AdminOptions::new()).await.unwrap();
    for ((topic, settings), found) in kept.into_iter().zip(found) {
        let found = found.unwrap();
        for (name, value) in settings {
            let entry = found.get(name).unwrap();
            // The setting is the topic's own, whatever the broker's default is.
            let is = (entry.value.as_deref(), &entry.source);
            assert_eq!(is, (Some(*value), &ConfigSource::DynamicTopic), "{topic}: {name}");
        }
    }

    let consumer = kafka.consumer(mail).await.unwrap();
    let delivery = consumer.receive(1, SECOND * 30, None).await.unwrap().pop().expect("the message arrives");
    // Nothing is received in this time, because the handler is working.
    SystemClock::new().sleep(SECOND * 7).await;
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    let unsettled = consumer.settle(vec![Settle { delivery, action: Action::ACK, note }]).await;
    assert!(unsettled.is_empty(), "{unsettled:?}");
    kafka.close().await.unwrap();
}
