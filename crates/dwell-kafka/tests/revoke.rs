//! A second consumer joins while the first one has unsettled messages: some partitions are revoked,
//! and the others stay.

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
/// Number of partitions of the topic and the retry topic together.
const PARTITIONS: usize = 4;
/// Number of attempts to receive something; each takes at most a second.
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

    /// Sends messages to each partition. Returns their ids.
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

    /// Receives messages and keeps one of each partition unsettled.
    async fn hold(&self, consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
        let (mut missing, mut held) = (self.send("first").await, BTreeMap::new());
        let mut rounds = 0..ROUNDS;
        while !missing.is_empty() {
            assert!(rounds.next().is_some(), "these never arrived: {missing:?}");
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

    /// Waits until the group has both members, and the first one knows which partitions are
    /// revoked.
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
                // Without a response, try again.
                list.is_ok_and(|list| list.groups().iter().any(both))
            });
            if asked.await.unwrap() {
                return;
            }
            assert!(clock.elapsed() < SECOND * 60, "the second consumer never became a member");
            clock.sleep(SECOND / 50).await;
        }
    }
}

/// Returns the bits of the lease position above the offset.
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
async fn messages_settled_during_a_revocation_are_not_redelivered() {
    // No test holds a message for this long.
    let scene = Scene::new(SECOND * 600).await;
    let one = scene.join().await;
    let held = scene.hold(&one).await;
    let two = scene.join().await;
    scene.until_both_are_members().await;
    for _ in 0..3 {
        assert_eq!(
            receive(&two).await.len(),
            0,
            "the first consumer still handles messages of these partitions"
        );
    }
    for delivery in held {
        assert!(rig::ack(&one, delivery).await.is_empty(), "the first consumer still has the lease");
    }

    let mut missing = scene.send("second").await;
    let (mut rounds, mut came) = (0..ROUNDS, [0, 0]);
    while !missing.is_empty() || came.contains(&0) {
        assert!(rounds.next().is_some(), "these never arrived: {missing:?}");
        for (consumer, came) in [&one, &two].into_iter().zip(&mut came) {
            for delivery in receive(consumer).await {
                let id = id(&delivery);
                assert!(missing.remove(&id), "`{id}` was redelivered");
                assert!(rig::ack(consumer, delivery).await.is_empty());
                *came += 1;
            }
        }
        if missing.is_empty() && came.contains(&0) {
            // The partitions were not revoked yet.
            missing = scene.send(&format!("more-{}", came[0])).await;
        }
    }
    scene.kafka.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_held_beyond_the_revoke_wait_are_redelivered_and_stale() {
    let scene = Scene::new(SECOND * 2).await;
    let one = scene.join().await;
    let held = scene.hold(&one).await;
    let two = scene.join().await;
    // The messages of revoked partitions arrive all at once; those of the other partitions stay.
    let (mut rounds, mut again) = (0..ROUNDS, BTreeSet::new());
    while again.is_empty() {
        assert!(rounds.next().is_some(), "nothing arrived at the second consumer");
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
        assert!(rounds.next().is_some(), "of {stale:?}, only {again:?} arrived at the second consumer");
        again.extend(receive(&two).await.iter().map(id));
    }
    assert_eq!(stale, again, "exactly the stale messages are redelivered");
    assert!(stale.len() < PARTITIONS, "all partitions were revoked");
    scene.kafka.close().await.unwrap();
}
