//! Relays come and go while records are on their way: none is lost, and none comes twice.

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
async fn relays_share_the_work_and_one_that_comes_or_goes_loses_and_repeats_nothing() {
    share_and_leave(Scene::new().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_share_the_work_within_transactions_too() {
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    share_and_leave(scene).await;
}

async fn share_and_leave(scene: Scene) {
    const COUNT: usize = 2_000;
    let target = scene.topic("orders").await;
    let (one, two) = (scene.relay(), scene.relay());
    scene.wait_for(&scene.delay_topic("due")).await;
    // `provision` of the transport knows the delay topics, too.
    let producer = scene.kafka.producer().await.unwrap();
    let now = scene.now();
    let due = |n: usize| now + 1_500 + (n as i64 % 20) * 100;
    let batch: Vec<_> = (0..COUNT).map(|n| record(&target, n, due(n))).collect();
    assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    // One more comes, and one goes, while records are on their way.
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
    assert_eq!(keys.len(), COUNT, "nobody crashed, and yet some came twice");
    two.stop().await;
    three.stop().await;
    assert_eq!(scene.count(&target), COUNT, "some came twice, after all the others");
}

/// What a group has done is not certain while a transaction that says so is open: its relay was killed, say.
#[tokio::test(flavor = "multi_thread")]
async fn who_gets_a_partition_while_its_offset_is_uncertain_does_nothing_of_it_again() {
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
    let doubt = tokio::task::spawn_blocking({
        let (address, due, group) = (scene.address.clone(), due.clone(), group.clone());
        move || Doubt::cast(&address, &due, &[0, 1], &group)
    });
    let doubt = doubt.await.unwrap();
    let two = scene.relay();
    scene.until("one has joined", || doubt.members() == Some(1)).await;
    let three = scene.relay();
    scene.until("both have their share", || doubt.members() == Some(2)).await;
    // It lasts for a while.
    scene.clock.sleep(SECOND * 3).await;
    tokio::task::spawn_blocking(move || doubt.dispel()).await.unwrap();

    send(FIRST..FIRST + 10).await;
    scene.read(&target, FIRST + 10).await;
    two.stop().await;
    three.stop().await;
    assert_eq!(scene.count(&target), FIRST + 10, "some came twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_offset_is_uncertain_holds_up_no_other() {
    const COUNT: usize = 20;
    let mut scene = Scene::new().await;
    scene.settings.relay.transactions = Some(SECOND * 5);
    let (target, due) = (scene.topic("orders").await, scene.delay_topic("due"));
    scene.wait_for(&due).await;
    let doubt = tokio::task::spawn_blocking({
        let (address, due) = (scene.address.clone(), due.clone());
        let group = format!("{}-{due}", scene.settings.relay.group);
        move || Doubt::cast(&address, &due, &[1], &group)
    });
    let doubt = doubt.await.unwrap();
    let relay = scene.relay();
    let at = scene.now() + 500;
    let batch: Vec<_> = (0..COUNT).map(|n| record(&target, n, at)).collect();
    let producer = scene.kafka.producer().await.unwrap();
    assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    let others = scene.list(&due, "%p").iter().filter(|partition| *partition == "0").count();
    assert!((1..COUNT).contains(&others), "{others}");
    scene.until("the others are there", || scene.count(&target) == others).await;
    tokio::task::spawn_blocking(move || doubt.dispel()).await.unwrap();
    scene.read(&target, COUNT).await;
    relay.stop().await;
    assert_eq!(scene.count(&target), COUNT, "some came twice");
}

/// A transaction that is open, about what a group has done in a topic.
struct Doubt {
    producer: BaseProducer,
    asker: BaseConsumer,
    topic: String,
    group: String,
}

impl Doubt {
    fn cast(address: &str, topic: &str, partitions: &[i32], group: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address);
        let asker: BaseConsumer = config.clone().set("group.id", group).create().unwrap();
        let mut offsets = TopicPartitionList::new();
        for &partition in partitions {
            let (_, end) = asker.fetch_watermarks(topic, partition, SECOND * 10).unwrap();
            offsets.add_partition_offset(topic, partition, Offset::Offset(end)).unwrap();
        }
        // It must not end by itself, however slow the machine.
        config.set("transactional.id", group).set("transaction.timeout.ms", "180000");
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(SECOND * 20).unwrap();
        producer.begin_transaction().unwrap();
        let nobody = asker.group_metadata().unwrap();
        producer.send_offsets_to_transaction(&offsets, &nobody, SECOND * 20).unwrap();
        let asked = asker.committed_offsets(offsets, SECOND);
        let is_known = |answer: TopicPartitionList| answer.elements().iter().all(|one| one.error().is_ok());
        assert!(!asked.is_ok_and(is_known), "nobody can be told");
        Self { producer, asker, topic: topic.to_owned(), group: group.to_owned() }
    }

    /// How many members the group has, once they have agreed and each has its share.
    fn members(&self) -> Option<usize> {
        let list = self.asker.fetch_group_list(Some(&self.group), SECOND * 10).ok()?;
        let group = list.groups().first().filter(|group| group.state() == "Stable")?;
        let named = |share: &[u8]| share.windows(self.topic.len()).any(|part| part == self.topic.as_bytes());
        let shares = group.members().iter().all(|member| member.assignment().is_some_and(named));
        shares.then_some(group.members().len())
    }

    /// It comes to nothing: what was committed before counts.
    fn dispel(self) {
        self.producer.abort_transaction(SECOND * 20).unwrap();
    }
}
