//! The relay never creates a target, not even if the broker creates topics automatically.

mod rig;

use dwell_conformance::servers::kafka::KafkaServer;
use rdkafka::admin::AdminOptions;
use rig::scene::{SECOND, Scene};
use std::process::Command;

/// Lists all topics. A request for a single topic might create it.
fn topics(scene: &Scene) -> Vec<String> {
    let out = Command::new("kcat").args(["-b", &scene.address, "-L"]).output().expect("kcat is installed");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let named = |line: &str| Some(line.trim().strip_prefix("topic \"")?.split('"').next()?.to_owned());
    said.lines().filter_map(named).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_target_is_not_created_by_a_broker_with_automatic_topics() {
    for transactions in [None, Some(SECOND * 5)] {
        let server = KafkaServer::start_with_automatic_topics().unwrap();
        let mut scene = Scene::at(&server.address()).await;
        scene.settings.relay.transactions = transactions;
        let (target, absent) = (scene.topic("orders").await, format!("absent-{}", scene.mark));
        let relay = scene.relay();
        let (due, now) = (scene.delay_topic("due"), scene.now().to_string());
        let write = |target: &String, body: &str| {
            let headers = [("x-target-topic", target.clone()), ("x-process-at", now.clone())];
            scene.write(&due, "k", &headers, body);
        };
        write(&target, "in time");
        write(&absent, "nowhere");
        assert_eq!(scene.read(&target, 1).await[0].3, "in time");
        scene.until("one is parked", || relay.counts.tally().parked == 1).await;
        // The relay has sent to this target, and has it in its cache.
        scene.admin().delete_topics(&[&target], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
        scene.until("the target is deleted", || !topics(&scene).contains(&target)).await;
        write(&target, "too late");
        scene.until("two are parked", || relay.counts.tally().parked == 2).await;
        let parked = scene.read(&scene.delay_topic("parked"), 2).await;
        for body in ["nowhere", "too late"] {
            let found = parked.iter().find(|(.., parked)| parked == body);
            assert!(found.is_some_and(|(_, _, headers, _)| headers.contains("does not exist")), "{parked:?}");
        }
        let there = topics(&scene);
        assert!(there.contains(&due) && !there.contains(&target) && !there.contains(&absent), "{there:?}");
        relay.stop().await;
    }
}
