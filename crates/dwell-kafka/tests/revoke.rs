//! A second consumer joins while the first has messages in hand: some partitions go, and the others stay as they are.

mod rig;

use dwell_core::{
    Address, Clock as _, Consumer, Delivery, Envelope, ErrorKind, Message, OnMissing, Seams, Subscription,
    SystemClock, Transport,
};
use dwell_kafka::Kafka;
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
    groups::GroupInfo,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

const SECOND: Duration = Duration::from_secs(1);
/// Partitions of the topic, and of the one that is the subscription's alone.
const PARTITIONS: usize = 4;
/// How often to look for something before that is given up; each takes a second at most.
const ROUNDS: usize = 60;

struct Scene {
    address: String,
    kafka: Kafka,
    mail: Subscription,
}

impl Scene {
    async fn new(revoke_wait: Duration) -> Self {
        let broker = rig::broker().await.unwrap();
        let (mut settings, seams) = (broker.settings(), Seams::system("revoke"));
        settings.revoke_wait = revoke_wait;
        let mail = Subscription::new(format!("orders-{}", seams.incarnation), "mail");
        let kafka = Kafka::connect(settings, seams).await.unwrap();
        kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
        Self { address: broker.address().to_owned(), kafka, mail }
    }

    async fn join(&self) -> Arc<dyn Consumer> {
        self.kafka.consumer(self.mail.clone()).await.unwrap()
    }

    /// Some for each partition. Returns their ids.
    async fn send(&self, name: &str) -> BTreeSet<String> {
        let to = [Address::topic(self.mail.topic.clone()), self.mail.address()];
        let each = |(n, to): (usize, &Address)| {
            let id = format!("{name}-{n}");
            let message =
                Message::new(id.clone(), "t", "x").with(|message| message.key = Some(id.clone().into()));
            (id, Envelope::new(to.clone(), message))
        };
        let (ids, batch): (BTreeSet<_>, Vec<_>) = to.iter().cycle().take(60).enumerate().map(each).unzip();
        assert!(self.kafka.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
        ids
    }

    /// One from each partition; all others are settled.
    async fn hold(&self, consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
        let (mut missing, mut held) = (self.send("first").await, BTreeMap::new());
        let mut rounds = 0..ROUNDS;
        while !missing.is_empty() {
            assert!(rounds.next().is_some(), "these never came: {missing:?}");
            for delivery in receive(consumer).await {
                missing.remove(&*delivery.message.id.0);
                if let Some(other) = held.insert(partition(&delivery), delivery) {
                    assert!(rig::ack(consumer, other).await.is_empty());
                }
            }
        }
        assert_eq!(held.len(), PARTITIONS);
        held.into_values().collect()
    }

    /// Until the group knows the second one, and has told the first which partitions to give up.
    async fn until_both_are_members(&self) {
        let group = format!("{}.mail", self.mail.topic);
        let asker: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", &self.address).create().unwrap();
        let (asker, clock) = (Arc::new(asker), SystemClock::new());
        let both = |group: &GroupInfo| group.members().len() == 2 && group.state() == "Stable";
        loop {
            let (asker, group) = (asker.clone(), group.clone());
            let asked = tokio::task::spawn_blocking(move || {
                let list = asker.fetch_group_list(Some(&group), SECOND * 10);
                // No answer means: not yet.
                list.is_ok_and(|list| list.groups().iter().any(both))
            });
            if asked.await.unwrap() {
                return;
            }
            assert!(clock.elapsed() < SECOND * 60, "the second never became a member");
            clock.sleep(SECOND / 50).await;
        }
    }
}

/// The bits of a receipt above the offset.
fn partition(delivery: &Delivery) -> u64 {
    delivery.receipt.lease().position >> 48
}

fn id(delivery: &Delivery) -> String {
    delivery.message.id.0.to_string()
}

async fn receive(consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
    consumer.receive(100, SECOND, None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_while_its_partition_goes_to_another_does_not_come_again() {
    // Nobody holds anything for as long.
    let scene = Scene::new(SECOND * 600).await;
    let one = scene.join().await;
    let held = scene.hold(&one).await;
    let two = scene.join().await;
    scene.until_both_are_members().await;
    for _ in 0..3 {
        assert_eq!(receive(&two).await.len(), 0, "the first still works on what is in them");
    }
    for delivery in held {
        assert!(rig::ack(&one, delivery).await.is_empty(), "it is still the first one's");
    }

    let mut missing = scene.send("second").await;
    let (mut rounds, mut came) = (0..ROUNDS, [0, 0]);
    while !missing.is_empty() || came.contains(&0) {
        assert!(rounds.next().is_some(), "these never came: {missing:?}");
        for (consumer, came) in [&one, &two].into_iter().zip(&mut came) {
            for delivery in receive(consumer).await {
                let id = id(&delivery);
                assert!(missing.remove(&id), "`{id}` came again");
                assert!(rig::ack(consumer, delivery).await.is_empty());
                *came += 1;
            }
        }
        if missing.is_empty() && came.contains(&0) {
            // The partitions had not gone yet.
            missing = scene.send(&format!("more-{}", came[0])).await;
        }
    }
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_for_longer_than_the_wait_comes_to_the_other_and_is_stale_here() {
    let scene = Scene::new(SECOND * 2).await;
    let one = scene.join().await;
    let held = scene.hold(&one).await;
    let two = scene.join().await;
    // They go all at once: those of some partitions, and those of the others stay.
    let (mut rounds, mut again) = (0..ROUNDS, BTreeSet::new());
    while again.is_empty() {
        assert!(rounds.next().is_some(), "nothing came to the other");
        again.extend(receive(&two).await.iter().map(id));
    }
    let mut stale = BTreeSet::new();
    for delivery in held {
        let id = id(&delivery);
        for unsettled in rig::ack(&one, delivery).await {
            assert_eq!(unsettled.error.kind(), ErrorKind::Stale);
            stale.insert(id.clone());
        }
    }
    while again.len() < stale.len() {
        assert!(rounds.next().is_some(), "of {stale:?} only {again:?} came to the other");
        again.extend(receive(&two).await.iter().map(id));
    }
    assert_eq!(stale, again, "what stays is settled, and what goes is not");
    assert!(stale.len() < PARTITIONS, "all of them have gone");
    scene.kafka.close().await.unwrap();
}
