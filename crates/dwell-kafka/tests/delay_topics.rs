//! The topics of a relay: how they are created, checked and recreated.

mod rig;

use dwell_conformance::Foreign;
use dwell_core::{Clock as _, ErrorKind, Headers, OnMissing, Subscription, Transport as _};
use dwell_kafka::Ladder;
use rdkafka::admin::{
    AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rig::{
    log,
    scene::{SECOND, Scene},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_topic_with_unsuitable_settings_is_refused() {
    let scene = Scene::new().await;
    let admin = scene.admin();
    let topic = scene.delay_topic("1s");
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("retention.ms", "60000");
    admin.create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let error = scene.relay().task.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    for named in [topic.as_str(), "message.timestamp.type=CreateTime", "retention.ms=60000"] {
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parking_topic_with_limited_retention_is_refused() {
    let scene = Scene::new().await;
    let topic = scene.delay_topic("parked");
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1));
    let new = new.set("retention.ms", "604800000").set("retention.bytes", "1000000");
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let by_relay = scene.relay().task.await.unwrap().unwrap_err();
    let by_bus = scene.kafka.provision(&[], &[], OnMissing::Validate).await.unwrap_err();
    for error in [by_relay, by_bus] {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        for named in [topic.as_str(), "retention.ms=604800000", "retention.bytes=1000000"] {
            assert!(error.to_string().contains(named), "{error}");
        }
    }
    let said = log::lines(&[" WARN ", &topic, "max.message.bytes=1048588"]);
    assert!(!said.is_empty(), "a limit that is too small for parked records is logged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_topic_with_limited_retention_is_logged() {
    let scene = Scene::new().await;
    let mail = Subscription::new(format!("orders-{}", scene.mark), "mail");
    let topic = format!("{}.dlq", mail.topic);
    let new = NewTopic::new(&topic, 1, TopicReplication::Fixed(1)).set("cleanup.policy", "compact");
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    scene.kafka.provision(&[], &[mail], OnMissing::Create).await.unwrap();
    for setting in ["cleanup.policy=compact", "retention.ms=604800000"] {
        assert_eq!(log::lines(&["dead letters may be lost", &topic, setting]).len(), 1, "{setting}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn validating_names_missing_delay_topics() {
    let scene = Scene::new().await;
    let error = scene.kafka.provision(&[], &[], OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for level in ["1s", "2s", "due", "parked"] {
        let topic = format!("`{}`", scene.delay_topic(level));
        assert!(error.to_string().contains(&topic), "{error}");
    }
}

/// People may clear the parking topic by deleting it.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_parking_topic_is_recreated_when_a_record_is_parked() {
    for transactions in [None, Some(SECOND * 5)] {
        let mut scene = Scene::new().await;
        scene.settings.relay.transactions = transactions;
        let target = scene.topic("orders").await;
        let relay = scene.relay();
        let [level, parked] = ["1s", "parked"].map(|level| scene.delay_topic(level));
        scene.wait_for(&level).await;
        scene.write(&level, "k", &[], "before");
        assert_eq!(scene.read(&parked, 1).await[0].3, "before");
        scene.admin().delete_topics(&[&parked], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        scene.write(&level, "k", &[], "after");
        let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
        scene.write(&level, "k", &headers, "good");
        assert_eq!(scene.read(&target, 1).await[0].3, "good");
        scene.wait_for(&parked).await;
        scene.until("the record is parked", || scene.list(&parked, "%s") == ["after"]).await;
        scene.until("the record is counted", || relay.counts.tally().parked == 2).await;
        scene.until("no record is left", || relay.counts.tally().lag.values().all(|lag| *lag == 0)).await;
        relay.stop().await;
    }
}

/// The first relay leaves records in a level that the second one does not have.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_level_that_left_the_ladder_are_still_delivered() {
    const COUNT: usize = 20;
    let mut scene = Scene::new().await;
    scene.settings.relay.ladder = Ladder::parse("1s,3s").unwrap();
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("3s"));
    let relay = scene.relay();
    scene.wait_for(&level).await;
    relay.stop().await;
    let at = scene.now() + 3_500;
    let headers = [("x-target-topic", target.clone()), ("x-process-at", at.to_string())];
    for n in 0..COUNT {
        scene.write(&level, &n.to_string(), &headers, "stranded");
    }
    scene.settings.relay.ladder = Ladder::parse("1s,2s").unwrap();
    let relay = scene.relay();
    let read = scene.read(&target, COUNT).await;
    assert!(read.iter().all(|(arrived, ..)| *arrived >= at), "early: {read:?}");
    let warned = log::lines(&[" WARN ", "not in the ladder", &level]);
    assert_eq!(warned.len(), 1, "{warned:?}");
    relay.stop().await;
}

/// A relay with the former ladder still runs while the new one starts, as in a rolling deployment.
#[tokio::test(flavor = "multi_thread")]
async fn later_records_of_a_level_outside_the_ladder_are_delivered() {
    let mut scene = Scene::new().await;
    scene.settings.relay.ladder = Ladder::parse("1s,3s").unwrap();
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("3s"));
    let relay = scene.relay();
    scene.wait_for(&level).await;
    relay.stop().await;
    scene.settings.relay.ladder = Ladder::parse("1s,2s").unwrap();
    let relay = scene.relay();
    let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
    scene.write(&scene.delay_topic("due"), "k", &headers, "the relay runs");
    scene.read(&target, 1).await;
    scene.write(&level, "k", &headers, "stranded");
    assert_eq!(scene.read(&target, 2).await.len(), 2);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_level_is_recreated_and_used_again() {
    let scene = Scene::new().await;
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("2s"));
    let relay = scene.relay();
    let write = |body: &str| {
        let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
        scene.write(&level, "k", &headers, body);
    };
    scene.wait_for(&level).await;
    write("before");
    scene.read(&target, 1).await;
    scene.admin().delete_topics(&[&level], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    scene.until("the level is deleted", || !scene.exists(&level)).await;
    scene.wait_for(&level).await;
    write("after");
    assert_eq!(scene.read(&target, 2).await.len(), 2);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_added_to_a_level_are_read_within_30_seconds() {
    let scene = Scene::new().await;
    let (target, level) = (scene.topic("orders").await, scene.delay_topic("1s"));
    let relay = scene.relay();
    scene.wait_for(&level).await;
    let headers = Headers::from_iter([("x-target-topic", target.clone()), ("x-process-at", "1".to_owned())]);
    let record = |body: &'static str| Foreign { key: None, headers: headers.clone(), body: body.into() };
    rig::produce(&scene.address, &level, &record("the relay runs")).unwrap();
    scene.read(&target, 1).await;
    let more = NewPartitions::new(&level, 3);
    scene.admin().create_partitions([&more], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    let start = scene.clock.elapsed();
    let foreigner = rig::Foreigner::new(&scene.address).unwrap();
    foreigner.write_to(&level, Some(2), &record("new"), None).unwrap().flush().unwrap();
    assert_eq!(scene.read(&target, 2).await.len(), 2);
    let took = scene.clock.elapsed() - start;
    assert!(took < SECOND * 30, "{took:?}");
    relay.stop().await;
}

/// Such records exist in a topic that had `CreateTime` before `LogAppendTime`.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_with_a_creation_time_does_not_delay_others() {
    let scene = Scene::new().await;
    let (target, level) = (format!("orders-{}", scene.mark), scene.delay_topic("1s"));
    let new = NewTopic::new(&level, 1, TopicReplication::Fixed(1)).set("retention.ms", "-1");
    scene.admin().create_topics([&new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    scene.wait_for(&level).await;
    let at = scene.now() + 4_000;
    let headers = Headers::from_iter([("x-target-topic", target.clone()), ("x-process-at", at.to_string())]);
    let record = Foreign { key: None, headers, body: "from the future".into() };
    let foreigner = rig::Foreigner::new(&scene.address).unwrap();
    foreigner.write(&level, &record, Some(at + 3_000_000)).unwrap().flush().unwrap();
    let config = [
        ("message.timestamp.type", "LogAppendTime"),
        ("retention.ms", "-1"),
        ("retention.bytes", "-1"),
        ("cleanup.policy", "delete"),
    ];
    let change =
        config.iter().fold(AlterConfig::new(ResourceSpecifier::Topic(&level)), |change, (key, value)| {
            change.set(key, value)
        });
    scene.admin().alter_configs([&change], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    assert_eq!(scene.topic("orders").await, target);
    let relay = scene.relay();
    let headers = [("x-target-topic", target.clone()), ("x-process-at", scene.now().to_string())];
    scene.write(&level, "k", &headers, "behind it");
    let read = scene.read(&target, 2).await;
    assert_eq!(read[0].3, "behind it");
    assert!(read[1].0 >= at, "early: {read:?}");
    relay.stop().await;
}
