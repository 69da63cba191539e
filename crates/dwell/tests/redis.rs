//! The same program on Redis: what the server's settings and the URL's options mean for its user.

mod common;

use common::logs;
use dwell::{extend::Seams, prelude::*};
use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use std::time::Duration;
use tracing::Level;

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders.placed")]
struct Placed {
    order: u64,
}

#[tokio::test]
async fn what_a_server_may_lose_is_said_once_at_the_start() {
    for (setting, value, said) in [
        ("appendonly", "no", Some("keeps no log")),
        ("appendfsync", "everysec", Some("once a second")),
        ("appendfsync", "no", Some("leaves writing to its disk")),
        ("appendfsync", "always", None),
    ] {
        let server = RedisServer::start(RedisOptions::default().with(setting, value)).unwrap();
        logs::capture();
        Bus::connect(&server.url()).await.unwrap().shutdown().await.unwrap();
        let lines = logs::take();
        let warnings: Vec<_> = lines.iter().filter(|line| line.level == Level::WARN).collect();
        assert_eq!(warnings.len(), usize::from(said.is_some()), "{setting} {value}: {lines:?}");
        if let Some(said) = said {
            let line = warnings[0];
            assert!(line.message.contains(said) && line.message.contains(setting), "{line:?}");
            assert!(line.field("server").is_some(), "{line:?}");
        }
    }
}

#[tokio::test]
async fn an_id_is_remembered_for_as_long_as_the_url_says_and_then_it_is_new() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let bus = Bus::connect(&format!("{}?ids=1s&done=0s", server.url())).await.unwrap();
    let clock = Seams::system("test").clock;
    let send = async || bus.publish(Placed { order: 42 }).id("order-42").await.unwrap().duplicate;
    let start = clock.now();
    assert!(!send().await);
    // A repetition is no use of the id: it does not keep it known.
    while send().await {
        clock.sleep(Duration::from_millis(100)).await;
    }
    assert!(clock.now().since(start) >= Duration::from_secs(1), "it was forgotten too early");
    bus.shutdown().await.unwrap();
}

/// How many scripts the server has run.
fn scripts(server: &RedisServer) -> usize {
    let said = server.cli(&["info", "commandstats"]).unwrap().stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let calls = said.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn jobs_that_a_worker_lost_are_put_off_together() {
    const MANY: usize = 100;
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let bus = Bus::connect(&server.url()).await.unwrap();
    let jobs = bus.jobs().unwrap();
    for _ in 0..MANY {
        jobs.submit_raw("image.resize", "application/json", "{}").await.unwrap();
    }
    let (clock, mut lost) = (Seams::system("test").clock, 0);
    while lost < MANY {
        let claim = jobs.claim(["image.resize"]).max(MANY).lease(Duration::from_secs(1));
        let claimed = claim.wait(Duration::from_secs(20)).await.unwrap();
        lost += claimed.len();
        // Whoever has them is gone without a word.
        std::mem::forget(claimed);
    }
    clock.sleep(Duration::from_millis(1100)).await;
    let (before, waiting) = (scripts(&server), ["hlen", "dwell:{job.image.resize}:waiting"]);
    while String::from_utf8_lossy(&server.cli(&waiting).unwrap().stdout).trim() != MANY.to_string() {
        let claim = jobs.claim(["image.resize"]).max(MANY);
        assert!(
            claim.wait(Duration::from_millis(10)).await.unwrap().is_empty(),
            "they wait before they run again"
        );
    }
    let scripts = scripts(&server) - before;
    assert!(scripts < MANY, "{scripts} scripts for {MANY} jobs");
    bus.shutdown().await.unwrap();
}
