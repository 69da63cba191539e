//! Relays start and stop while records are in flight: none is lost or duplicated.

mod rig;

use dwell_core::{Address, Clock, Due, Envelope, Message, Timestamp, Transport as _};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    producer::{BaseProducer, Producer as _},
};
use rig::scene::{SECOND, Scene};

fn record(target: &str, n: usize, at: i64) -> Envelope {
    let message = Message::new(n.to_string(), "t", at.to_string())
        .with(|message| message.key = Some(n.to_string().into()));
    Envelope::new(Address::topic(target), message).due(Due::At(Timestamp(at)))
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_that_start_and_stop_lose_and_duplicate_nothing() {
    share_and_leave(Scene::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_with_transactions_that_start_and_stop_lose_and_duplicate_nothing() {
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    share_and_leave(scene).await;
}

async fn share_and_leave(scene: Scene) {
    const COUNT: usize = 2_000;
    let target = scene.topic("orders").await;
    let (one, two) = (scene.relay(), scene.relay());
    scene.wait_for(&scene.delay_topic("due")).await;
    // The transport's `provision` knows the delay topics as well.
    let producer = scene.kafka.producer().await.unwrap();
    let now = scene.now();
    let due = |n: usize| now + 1_500 + (n as i64 % 20) * 100;
    let batch: Vec<_> = (0..COUNT).map(|n| record(&target, n, due(n))).collect();
    assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    // A third relay starts and the first one stops while records are in flight.
    scene.clock.sleep(SECOND).await;
    let three = scene.relay();
    scene.clock.sleep(SECOND).await;
    one.stop().await;
    let read = scene.read(&target, COUNT).await;
    let early = read.iter().filter(|(at, _, _, due)| *at < due.parse::<i64>().unwrap()).count();
    assert_eq!(early, 0);
    let mut keys: Vec<_> = read.iter().map(|(_, key, ..)| key.parse::<usize>().unwrap()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), COUNT, "some records are duplicates although no relay crashed");
    two.stop().await;
    three.stop().await;
    assert_eq!(scene.count(&target), COUNT, "some duplicates arrived after all other records");
}

/// The committed offset of a group is uncertain while a transaction with it is open, as after its
/// relay was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_an_uncertain_offset_is_not_repeated() {
    const FIRST: usize = 20;
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    let (target, due) = (scene.topic("orders").await, scene.delay_topic("due"));
    let producer = scene.kafka.producer().await.unwrap();
    let send = async |numbers: std::ops::Range<usize>| {
        let at = scene.now() + 500;
        let batch: Vec<_> = numbers.map(|n| record(&target, n, at)).collect();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    };
    let one = scene.relay();
    send(0..FIRST).await;
    scene.read(&target, FIRST).await;
    one.stop().await;

    let group = format!("{}-{due}", scene.settings.relay.group);
    let open = tokio::task::spawn_blocking({
        let (address, due, group) = (scene.address.clone(), due.clone(), group.clone());
        move || OpenTransaction::begin(&address, &due, &[0, 1], &group)
    });
    let open = open.await.unwrap();
    let two = scene.relay();
    scene.until("one relay has joined", || open.members() == Some(1)).await;
    let three = scene.relay();
    scene.until("both have their share", || open.members() == Some(2)).await;
    // The uncertainty lasts for a while.
    scene.clock.sleep(SECOND * 3).await;
    tokio::task::spawn_blocking(move || open.abort()).await.unwrap();

    send(FIRST..FIRST + 10).await;
    scene.read(&target, FIRST + 10).await;
    two.stop().await;
    three.stop().await;
    assert_eq!(scene.count(&target), FIRST + 10, "some records are duplicates");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_an_uncertain_offset_does_not_delay_others() {
    const COUNT: usize = 20;
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    let (target, due) = (scene.topic("orders").await, scene.delay_topic("due"));
    scene.wait_for(&due).await;
    let open = tokio::task::spawn_blocking({
        let (address, due) = (scene.address.clone(), due.clone());
        let group = format!("{}-{due}", scene.settings.relay.group);
        move || OpenTransaction::begin(&address, &due, &[1], &group)
    });
    let open = open.await.unwrap();
    let relay = scene.relay();
    let at = scene.now() + 500;
    let batch: Vec<_> = (0..COUNT).map(|n| record(&target, n, at)).collect();
    let producer = scene.kafka.producer().await.unwrap();
    assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    let others = scene.list(&due, "%p").iter().filter(|partition| *partition == "0").count();
    assert!((1..COUNT).contains(&others), "{others}");
    scene.until("the other records arrive", || scene.count(&target) == others).await;
    tokio::task::spawn_blocking(move || open.abort()).await.unwrap();
    scene.read(&target, COUNT).await;
    relay.stop().await;
    assert_eq!(scene.count(&target), COUNT, "some records are duplicates");
}

/// An open transaction with the offsets of a group.
struct OpenTransaction {
    producer: BaseProducer,
    asker: BaseConsumer,
    topic: String,
    group: String,
}

impl OpenTransaction {
    fn begin(address: &str, topic: &str, partitions: &[i32], group: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address);
        let asker: BaseConsumer = config.clone().set("group.id", group).create().unwrap();
        let mut offsets = TopicPartitionList::new();
        for &partition in partitions {
            let (_, end) = asker.fetch_watermarks(topic, partition, SECOND * 10).unwrap();
            offsets.add_partition_offset(topic, partition, Offset::Offset(end)).unwrap();
        }
        // The transaction must not time out, however slow the machine is.
        config.set("transactional.id", group).set("transaction.timeout.ms", "180000");
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(SECOND * 20).unwrap();
        producer.begin_transaction().unwrap();
        let nobody = asker.group_metadata().unwrap();
        producer.send_offsets_to_transaction(&offsets, &nobody, SECOND * 20).unwrap();
        let asked = asker.committed_offsets(offsets, SECOND);
        let is_known = |answer: TopicPartitionList| answer.elements().iter().all(|one| one.error().is_ok());
        assert!(!asked.is_ok_and(is_known), "the offsets are uncertain");
        Self { producer, asker, topic: topic.to_owned(), group: group.to_owned() }
    }

    /// Returns the number of members, once the group is stable and each member has its share.
    fn members(&self) -> Option<usize> {
        let list = self.asker.fetch_group_list(Some(&self.group), SECOND * 10).ok()?;
        let group = list.groups().first().filter(|group| group.state() == "Stable")?;
        let named = |share: &[u8]| share.windows(self.topic.len()).any(|part| part == self.topic.as_bytes());
        let shares = group.members().iter().all(|member| member.assignment().is_some_and(named));
        shares.then_some(group.members().len())
    }

    /// Aborts the transaction, so that the former offsets count.
    fn abort(self) {
        self.producer.abort_transaction(SECOND * 20).unwrap();
    }
}
