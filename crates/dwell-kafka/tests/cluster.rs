//! A cluster that loses one node after the other. What it led, and the groups that it coordinated, move to the others.

mod rig;

use dwell_conformance::servers::kafka::KafkaCluster;
use dwell_core::{
    Address, Consumer, Due, Envelope, Message, OnMissing, Producer, Seams, Subscription, Transport,
};
use dwell_kafka::Kafka;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SECOND: Duration = Duration::from_secs(1);
/// Messages sent while a node is away, half of them with a delay.
const EACH: usize = 40;

/// Sends until each is confirmed; what is not known to be there is sent again.
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

/// Receives and settles until all of these have come.
async fn receive(consumer: &Arc<dyn Consumer>, mut missing: BTreeSet<String>) {
    for _ in 0..60 {
        for delivery in consumer.receive(100, SECOND * 2, None).await.unwrap_or_default() {
            missing.remove(&*delivery.message.id.0);
            // It may be another's by now, and then comes again.
            rig::ack(consumer, delivery).await;
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("these never came: {missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_in_turn_may_go_with_what_it_leads_and_coordinates_and_nothing_is_lost() {
    let mut cluster = KafkaCluster::start().unwrap();
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
    // All have begun: the relay does not start without a broker that it was promised.
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
