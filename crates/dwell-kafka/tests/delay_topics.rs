//! The topics that a relay needs: looked at, and refused or warned of.

mod rig;

use dwell_core::{ErrorKind, OnMissing, Subscription, Transport as _};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rig::{
    log,
    scene::{SECOND, Scene},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_topic_under_whose_settings_a_record_could_come_early_is_refused() {
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
async fn a_topic_that_would_not_keep_for_ever_what_is_parked_in_it_is_refused() {
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
    assert!(!said.is_empty(), "what is too large to be parked is warned of");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_keep_dead_letters_for_ever_is_warned_of() {
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
async fn delay_topics_that_are_missing_are_named_where_they_are_only_looked_for() {
    let scene = Scene::new().await;
    let error = scene.kafka.provision(&[], &[], OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for level in ["1s", "2s", "due", "parked"] {
        let topic = format!("`{}`", scene.delay_topic(level));
        assert!(error.to_string().contains(&topic), "{error}");
    }
}

/// Whoever clears it may do so by deleting it.
#[tokio::test(flavor = "multi_thread")]
async fn a_parking_topic_that_was_deleted_is_made_anew_when_there_is_something_to_park() {
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
        scene.until("it is parked", || scene.list(&parked, "%s") == ["after"]).await;
        scene.until("that counts", || relay.counts.tally().parked == 2).await;
        scene.until("nothing is left", || relay.counts.tally().lag.values().all(|lag| *lag == 0)).await;
        relay.stop().await;
    }
}
