//! A real server with faults: each fault is survived, or is an error that says what to do, and no
//! message is lost.

mod stage;

use dwell_conformance::servers::redis::{RedisCluster, RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Changed, Claim, Consumer, Due, Envelope, ErrorKind, OnConflict, OnMissing, Seams,
    Settle, Subscription, Transport, TransportUrl,
};
use dwell_redis::Redis;
use stage::{PATIENCE, connect, is_waiting, mail, note, order, said, send, settle, subscribed};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Receives and acknowledges this number of messages, despite errors.
async fn take(consumer: &Arc<dyn Consumer>, count: usize) -> BTreeSet<String> {
    let (clock, mut seen) = (Seams::system("test").clock, BTreeSet::new());
    let start = clock.elapsed();
    while seen.len() < count {
        assert!(clock.elapsed() - start < PATIENCE, "only {seen:?}");
        let batch = match consumer.receive(10, Duration::from_millis(500), None).await {
            Ok(batch) => batch,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                clock.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        for delivery in batch {
            seen.insert(delivery.message.id.to_string());
            consumer.settle(vec![Settle { delivery, action: Action::ACK, note: note() }]).await;
        }
    }
    seen
}

/// Collects the log output of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two programs with one subscription each. Each provisions its own again, and the other's cached
/// topic is outdated.
#[tokio::test]
async fn vanished_topics_are_provisioned_again() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let (one, two) = (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    let stock = Subscription { name: "stock".into(), ..mail() };
    let mailer = subscribed(&one).await;
    two.provision(&[], std::slice::from_ref(&stock), OnMissing::Create).await.unwrap();
    let stocker = two.consumer(stock).await.unwrap();
    send(&one, order("lost")).await.unwrap();
    let held = mailer.receive(1, PATIENCE, None).await.unwrap().remove(0);
    let settings = || {
        said(&server, &["hkeys", "dwell:{orders}:topic"]).lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (before, names) = (settings(), said(&server, &["smembers", "dwell:topics"]).lines().count());

    said(&server, &["flushall"]);
    let unsettled = mailer.settle(vec![Settle { delivery: held, action: Action::ACK, note: note() }]).await;
    assert_eq!(unsettled[0].error.kind(), ErrorKind::Stale);
    assert!(stocker.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
    assert_eq!(settings(), before, "layout and both subscriptions exist again");
    assert_eq!(said(&server, &["smembers", "dwell:topics"]).lines().count(), names);
    send(&two, order("a")).await.unwrap();
    send(&one, order("b").due(Due::After(Duration::from_millis(50)))).await.unwrap();
    for consumer in [&mailer, &stocker] {
        assert_eq!(take(consumer, 2).await, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let loss = text.lines().find(|line| line.contains("vanished")).unwrap_or_else(|| panic!("{text}"));
    assert!(loss.contains("ERROR") && loss.contains("orders"), "{loss}");
}

/// Returns the number of messages within more than a lease.
async fn take_now(consumer: &Arc<dyn Consumer>) -> usize {
    consumer.receive(10, mail().lease * 2, None).await.unwrap().len()
}

/// Sends until the send is confirmed.
async fn send_surely(redis: &Redis, envelope: Envelope) {
    let clock = Seams::system("test").clock;
    let start = clock.elapsed();
    while let Err(error) = send(redis, envelope.clone()).await {
        assert!(error.is_retryable() && clock.elapsed() - start < PATIENCE, "{error:?}");
        clock.sleep(Duration::from_millis(50)).await;
    }
}

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendfsync", "always")).unwrap()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn a_forgotten_script_is_loaded_again() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("a")).await.unwrap();
    server.cli(&["script", "flush"]).unwrap();
    send(&redis, order("b")).await.unwrap();
    server.cli(&["script", "flush"]).unwrap();
    assert_eq!(take(&consumer, 2).await, names(&["a", "b"]));
}

#[tokio::test]
async fn a_server_without_memory_refuses_sends_but_handles_stored_messages() {
    let server = server();
    let redis = connect(&format!("{}?shards=2", server.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("ready")).await.unwrap();
    let soon = Due::After(Duration::from_millis(300));
    send(&redis, order("in-a-bucket").due(soon)).await.unwrap();
    send(&redis, Envelope { once: Some(OnConflict::Fail), ..order("waits").due(soon) }).await.unwrap();
    send(&redis, order("later").due(Due::After(PATIENCE * 100))).await.unwrap();
    server.cli(&["config", "set", "maxmemory", "1mb"]).unwrap();
    let error = send(&redis, order("refused")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.to_string().contains("maxmemory"), "{error}");
    // Handlers with an inbox claim before and confirm afterwards.
    let (inbox, id) = (redis.inbox().unwrap(), "ready".into());
    assert_eq!(inbox.claim("orders/mail", &id, 1, PATIENCE).await.unwrap(), Claim::New);
    inbox.done("orders/mail", &id, PATIENCE).await.unwrap();
    assert_eq!(inbox.claim("orders/mail", &id, 2, PATIENCE).await.unwrap(), Claim::Done);
    let [ready] = consumer.receive(1, PATIENCE, None).await.unwrap().try_into().expect("one is ready");
    settle(&consumer, ready, Action::Ack { result: Some("42".into()) }).await;
    // Its bucket must be registered for the new time.
    assert_eq!(redis.scheduler().unwrap().reschedule(&"later".into(), soon).await.unwrap(), Changed::Done);
    assert_eq!(take(&consumer, 3).await, names(&["in-a-bucket", "later", "waits"]));
    server.cli(&["config", "set", "maxmemory", "0"]).unwrap();
    send(&redis, order("again")).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["again"]));
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_unavailable_until_it_is_a_master_again() {
    let (server, other) = (server(), server());
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("a")).await.unwrap();
    // A replica of its own data, so that nothing is lost.
    other.cli(&["replicaof", "127.0.0.1", &server.port().to_string()]).unwrap();
    let clock = Seams::system("test").clock;
    while !said(&other, &["info", "replication"]).contains("link_status:up") {
        clock.sleep(Duration::from_millis(20)).await;
    }
    other.cli(&["replicaof", "no", "one"]).unwrap();
    server.cli(&["replicaof", "127.0.0.1", &other.port().to_string()]).unwrap();
    let error = send(&redis, order("refused")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    server.cli(&["replicaof", "no", "one"]).unwrap();
    send_surely(&redis, order("b")).await;
    assert_eq!(take(&consumer, 2).await, names(&["a", "b"]));
}

#[tokio::test]
async fn a_conflicting_key_is_reported_without_partial_effects() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    server.cli(&["set", "dwell:{orders}:ready:mail", "mine"]).unwrap();
    let error = send(&redis, order("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("`prefix`"), "{error}");
    server.cli(&["del", "dwell:{orders}:ready:mail"]).unwrap();
    send(&redis, order("b")).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["b"]));
}

#[tokio::test]
async fn operation_continues_after_a_conflicting_key_is_removed() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("held")).await.unwrap();
    send(&redis, order("due").due(Due::After(Duration::from_millis(1)))).await.unwrap();
    let [held] = consumer.receive(1, PATIENCE, None).await.unwrap().try_into().expect("one is ready");
    // Nothing has been stored there yet, so the name is free.
    let key = "dwell:{orders}:aliases";
    assert!(server.cli(&["set", key, "mine"]).unwrap().status.success());
    let error = consumer.receive(1, Duration::from_millis(10), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains(key), "{error}");
    let note = note();
    let unsettled =
        consumer.settle(vec![Settle { delivery: held, action: Action::ACK, note: note.clone() }]).await;
    let [unsettled] = unsettled.try_into().expect("it is not settled");
    assert_eq!(unsettled.error.kind(), ErrorKind::Conflict, "{}", unsettled.error);
    assert!(server.cli(&["del", key]).unwrap().status.success());
    let settled = consumer.settle(vec![unsettled.settle]).await;
    assert!(settled.is_empty(), "{settled:?}");
    assert_eq!(take(&consumer, 1).await, names(&["due"]));
    assert_eq!(take_now(&consumer).await, 0, "settled messages are not redelivered");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_denied_and_never_shown() {
    let server = RedisServer::start(RedisOptions::default().with("requirepass", "correct-horse")).unwrap();
    let at = server.url().replace("redis://", "");
    for (user, said) in
        [(":hunter2@", "does not accept"), ("someone:hunter2@", "check them"), ("", "has none")]
    {
        let error = connect(&format!("redis://{user}{at}")).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let redis = connect(&format!("redis://:correct-horse@{at}")).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("a")).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["a"]));
    assert!(!format!("{redis:?}").contains("correct-horse"));
}

#[tokio::test]
async fn a_missing_database_is_named_in_the_error() {
    let server = server();
    let error = connect(&format!("{}/99", server.url())).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
    assert!(error.to_string().contains("no database 99"), "{error}");
}

#[tokio::test]
async fn a_server_that_may_evict_messages_is_refused() {
    let server = RedisServer::start(RedisOptions::default().with("maxmemory-policy", "allkeys-lru")).unwrap();
    let error = connect(&server.url()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("noeviction"), "{error}");
}

#[tokio::test]
async fn a_server_without_a_log_is_not_durable() {
    let with = server();
    assert!(connect(&with.url()).await.unwrap().capabilities().durable);
    let without = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    assert!(!connect(&without.url()).await.unwrap().capabilities().durable);
}

#[tokio::test]
async fn a_killed_and_restarted_server_loses_nothing() {
    let mut server = RedisServer::start(RedisOptions::default().with("appendfsync", "always")).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("ready")).await.unwrap();
    send(&redis, order("waits").due(Due::After(Duration::from_millis(200)))).await.unwrap();
    let held = consumer.receive(1, PATIENCE, None).await.unwrap();
    assert_eq!(held.len(), 1);
    server.kill();
    let error = send(&redis, order("away")).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    server.resume().unwrap();
    send_surely(&redis, order("after")).await;
    drop(held);
    assert_eq!(take(&consumer, 3).await, names(&["after", "ready", "waits"]));
}

#[tokio::test]
async fn a_waiting_receive_wakes_after_a_server_restart() {
    let mut server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    let waiting = tokio::spawn(async move { take(&consumer, 1).await });
    server.restart().unwrap();
    send_surely(&redis, order("a")).await;
    assert_eq!(waiting.await.unwrap(), names(&["a"]));
}

#[tokio::test]
async fn a_closed_consumer_leaves_no_name_and_no_settled_messages() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("a")).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["a"]));
    consumer.close().await.unwrap();
    let consumers = server.cli(&["xinfo", "consumers", "dwell:{orders}:ready:mail", "dwell"]).unwrap();
    assert!(consumers.stdout.iter().all(u8::is_ascii_whitespace), "a closed consumer leaves no name behind");
    assert_eq!(said(&server, &["xlen", "dwell:{orders}:ready:mail"]), "0", "settled messages are removed");
}

#[tokio::test]
async fn the_documented_insert_commands_work() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let is_there = || said(&server, &["sismember", "dwell:topics", "orders.placed"]);
    assert_eq!(is_there(), "0");
    let page = include_str!("../../../docs/transports/redis.md");
    let shown: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("redis-cli XADD ")).collect();
    assert_eq!(shown.len(), 2, "the page shows a message that is due at once, and one with a delay");
    for line in shown {
        let command = format!("redis-cli -e -p {} XADD {line}", server.port());
        let ran = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(ran.status.success(), "{command}: {ran:?}");
    }
    // Messages that arrived before their topic existed are taken in later.
    let mail = Subscription { topic: "orders.placed".into(), ..mail() };
    redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    assert_eq!(is_there(), "1");
    let consumer = redis.consumer(mail).await.unwrap();
    let batch = consumer.receive(10, PATIENCE, None).await.unwrap();
    let [first] = batch.try_into().expect("the one that is due");
    assert_eq!((&*first.message.kind, &first.message.body[..]), ("orders.placed", &br#"{"order": 42}"#[..]));
    settle(&consumer, first, Action::ACK).await;
    let waiting = redis.scheduler().unwrap().pending(dwell_core::Query::default()).await.unwrap();
    let [waiting] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!(&*waiting.envelope.message.id.0, "order-43");
    assert_eq!(&waiting.envelope.message.body[..], br#"{"order": 43}"#);
    assert_eq!(waiting.envelope.message.key.as_deref(), Some(&b"order-43"[..]));
}

#[tokio::test]
async fn the_documented_inspection_commands_work() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("held")).await.unwrap();
    let [held] = consumer.receive(1, PATIENCE, None).await.unwrap().try_into().expect("one is ready");
    send(&redis, order("ready")).await.unwrap();
    let sent = send(&redis, order("waits").due(Due::After(PATIENCE * 100))).await.unwrap();
    let page = include_str!("../../../docs/transports/redis.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Layout\n"));
    let section = section.expect("the page has a section `Layout`");
    let shown: Vec<_> = section.lines().filter(|line| line.starts_with("redis-cli ")).collect();
    let said = |start: &str| {
        let line = shown.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start}"));
        let command = line.replace("redis-cli", &format!("redis-cli -e -p {}", server.port()));
        let ran = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(ran.status.success(), "{command}: {ran:?}");
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    assert_eq!(shown.len(), 3, "each of them is tried: {shown:?}");
    let ready = said("redis-cli XRANGE");
    assert!(ready.contains("orders.placed") && ready.contains("ready") && ready.contains("held"), "{ready}");
    let pending = said("redis-cli XPENDING");
    assert!(pending.starts_with("1\n"), "one is leased: {pending}");
    let due = said("redis-cli ZRANGE");
    assert_eq!(due.trim(), format!("waits@orders\n{}", sent.due.unwrap().0));
    settle(&consumer, held, Action::ACK).await;
}

#[tokio::test]
async fn invalid_fields_of_foreign_messages_are_delivered_with_a_problem() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    let wrong: [(&[&str], &str); 13] = [
        (&["delay", "5s"], "`delay` is not a number"),
        (&["delay", "-5"], "`delay` is not a number"),
        (&["delay", "nan"], "`delay` is not a number"),
        (&["due", "2026-12-01"], "`due` is not a number"),
        (&["due", "99999999999999999999"], "`due` is not a number"),
        (&["due", "1", "delay", "1"], "both `due` and `delay`"),
        (&["to", "nosuch"], "no subscription `nosuch`"),
        (&["handled", "nan"], "`handled` is not a number"),
        (&["failed", "inf"], "`failed` is not a number"),
        (&["handled", "1e999"], "`handled` is not a number"),
        (&["handled", "nan", "delay", "1"], "`handled` is not a number"),
        (&["failed", "inf", "delay", "1"], "`failed` is not a number"),
        (&["handled", "1e999", "delay", "1"], "`handled` is not a number"),
    ];
    for (fields, problem) in wrong {
        let put = ["xadd", "dwell:{orders}:incoming", "*", "type", "orders.placed", "body", "{}"];
        assert!(server.cli(&[&put, fields].concat()).unwrap().status.success());
        let batch = consumer.receive(10, PATIENCE, None).await.unwrap();
        let [delivery] = batch.try_into().expect("one delivery");
        let said = delivery.problem.clone().unwrap_or_default();
        assert!(said.contains(problem), "{fields:?}: {said}");
        settle(&consumer, delivery, Action::ACK).await;
    }
    send(&redis, order("fine")).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["fine"]));
}

/// Returns the number of reads of the server.
fn reads(server: &RedisServer) -> u64 {
    let stats = said(server, &["info", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xread:calls="));
    calls.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn foreign_messages_do_not_keep_consumers_busy_with_a_separate_promoter() {
    let server = server();
    let redis = connect(&format!("{}?promoter=elsewhere", server.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    let put = ["xadd", "dwell:{orders}:incoming", "*", "type", "orders.placed", "body", "{}"];
    assert!(server.cli(&put).unwrap().status.success());
    let batch = consumer.receive(1, Duration::from_millis(500), None).await.unwrap();
    assert!(batch.is_empty(), "it has not been taken in");
    assert!(reads(&server) < 20, "asked {} times", reads(&server));
}

#[tokio::test]
async fn a_consumer_of_adopted_messages_does_not_poll_continuously() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    redis.provision(&[dwell_core::Topic::named("orders").keep()], &[], OnMissing::Create).await.unwrap();
    let kept = redis.consumer(Subscription::new("orders", "orders")).await.unwrap();
    let _adopter = subscribed(&redis).await;
    // The stream of signals has an entry since the message was scheduled.
    send(&redis, order("a").due(Due::After(Duration::from_secs(3600)))).await.unwrap();
    let before = reads(&server);
    assert!(kept.receive(1, Duration::from_millis(500), None).await.unwrap().is_empty());
    assert!(reads(&server) - before < 20, "asked {} times", reads(&server) - before);
}

#[tokio::test]
async fn a_separate_promoter_promotes_for_consumers() {
    let server = server();
    let url = format!("{}?promoter=elsewhere", server.url());
    let redis = connect(&url).await.unwrap();
    assert!(redis.background(Box::pin(std::future::pending())).is_none());
    let consumer = subscribed(&redis).await;
    send(&redis, order("a").due(Due::After(Duration::from_millis(100)))).await.unwrap();
    assert!(
        consumer.receive(1, Duration::from_millis(400), None).await.unwrap().is_empty(),
        "no promoter runs"
    );

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let parsed = TransportUrl::parse(&url).unwrap();
    let promoter = tokio::spawn(async move {
        let stop = Box::pin(async move { _ = stopped.await });
        dwell_redis::promote(&parsed, Seams::system("promoter"), stop).await
    });
    assert_eq!(take(&consumer, 1).await, names(&["a"]));
    let clock = Seams::system("test").clock;
    let start = clock.elapsed();
    send(&redis, order("b").due(Due::After(Duration::from_millis(100)))).await.unwrap();
    assert_eq!(take(&consumer, 1).await, names(&["b"]));
    let waited = clock.elapsed() - start;
    assert!(waited >= Duration::from_millis(100), "{waited:?}");
    drop(stop);
    promoter.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_loses_a_master_keeps_replicated_messages() {
    let quick = RedisOptions::default().with("cluster-node-timeout", "1000");
    let mut cluster = RedisCluster::start_with(quick).unwrap();
    cluster.replicated("dwell:{orders}:due").unwrap();
    let redis = connect(&format!("{}?replicas=1&timeout=3s", cluster.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    send_surely(&redis, order("ready")).await;
    send_surely(&redis, order("waits").due(Due::After(Duration::from_millis(500)))).await;
    let master = cluster.master_of("dwell:{orders}:due").unwrap();
    cluster.servers()[master].kill();
    // The new master has no replica, so it confirms alone.
    let alone = connect(&format!("{}?timeout=3s", cluster.url())).await;
    let clock = Seams::system("test").clock;
    let mut alone = alone;
    for _ in 0..100 {
        if alone.is_ok() {
            break;
        }
        clock.sleep(Duration::from_millis(100)).await;
        alone = connect(&format!("{}?timeout=3s", cluster.url())).await;
    }
    let alone = alone.unwrap();
    send_surely(&alone, order("after")).await;
    let next = alone.consumer(mail()).await.unwrap();
    assert_eq!(take(&next, 3).await, names(&["after", "ready", "waits"]));
    drop(consumer);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_replica_does_not_delay_sends_to_other_masters() {
    let mut cluster = RedisCluster::start().unwrap();
    let master_of = |topic: &str| cluster.master_of(&format!("dwell:{{{topic}}}:due")).unwrap();
    let other =
        (0..).map(|n| format!("other{n}")).find(|topic| master_of(topic) != master_of("orders")).unwrap();
    let (master, there) = (master_of("orders"), master_of(&other));
    // A send waits for half of it, which is longer than this test.
    let redis = connect(&format!("{}?replicas=1&timeout=2m", cluster.url())).await.unwrap();
    let elsewhere = Subscription::new(other.clone(), "mail");
    redis.provision(&[], &[mail(), elsewhere], OnMissing::Create).await.unwrap();
    let port = cluster.servers()[master].port().to_string();
    let role = |server: &RedisServer| said(server, &["role"]);
    let is_its = |role: &str| role.starts_with("slave") && role.lines().any(|line| line == port);
    cluster.servers().iter_mut().filter(|server| is_its(&role(server))).for_each(RedisServer::kill);

    let sender = redis.clone();
    let waits = tokio::spawn(async move { send(&sender, order("a")).await });
    let clock = Seams::system("test").clock;
    while !is_waiting(&cluster.servers()[master]) {
        assert!(!waits.is_finished(), "no replica confirms it");
        clock.sleep(Duration::from_millis(10)).await;
    }
    let envelope = Envelope { to: Address::topic(other), ..order("b") };
    send(&redis, envelope).await.unwrap();
    assert!(!waits.is_finished(), "{master} {there}");
    waits.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_client_continues_with_the_replica_of_a_lost_master() {
    let quick = RedisOptions::default().with("cluster-node-timeout", "1000");
    let mut cluster = RedisCluster::start_with(quick).unwrap();
    let redis = connect(&format!("{}?timeout=3s", cluster.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    send_surely(&redis, order("before")).await;
    assert_eq!(take(&consumer, 1).await, names(&["before"]));
    // It waits for the master that will be lost.
    let waiting = tokio::spawn(async move {
        // The settlement of `before` may be lost with the master, so that it is redelivered.
        let (wanted, mut seen) = (names(&["after", "later"]), BTreeSet::new());
        while !wanted.is_subset(&seen) {
            seen.extend(take(&consumer, 1).await);
        }
    });
    // Data that the replica lacks may be lost. The topic itself must exist there.
    cluster.replicated("dwell:{orders}:due").unwrap();
    let master = cluster.master_of("dwell:{orders}:due").unwrap();
    cluster.servers()[master].kill();
    send_surely(&redis, order("after")).await;
    send_surely(&redis, order("later").due(Due::After(Duration::from_millis(300)))).await;
    waiting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading_its_data_is_unavailable() {
    let slow = RedisOptions::default().with("appendfsync", "always").with("key-load-delay", "500");
    let mut server = RedisServer::start(slow).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("ready")).await.unwrap();
    // Data that takes the server a while to read.
    let lua = "for n = 1, 5000 do redis.call('SET', 'other:' .. n, n) end";
    server.cli(&["eval", lua, "0"]).unwrap();
    server.kill();
    let resumed = tokio::task::spawn_blocking(move || server.resume().map(|()| server));
    let (clock, mut said) = (Seams::system("test").clock, BTreeSet::new());
    let start = clock.elapsed();
    while let Err(error) = send(&redis, order("after")).await {
        assert!(error.kind() == ErrorKind::Unavailable && clock.elapsed() - start < PATIENCE, "{error:?}");
        said.insert(error.to_string());
    }
    assert!(said.iter().any(|error| error.contains("still reading its data")), "{said:?}");
    assert_eq!(take(&consumer, 2).await, names(&["after", "ready"]));
    drop(resumed.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_the_slot_of_a_topic_is_unavailable() {
    let server = RedisServer::start(RedisOptions::default().with("cluster-enabled", "yes")).unwrap();
    let clock = Seams::system("test").clock;
    let has_all = |is: &str| said(&server, &["cluster", "info"]).contains(is);
    server.cli(&["cluster", "addslotsrange", "0", "16383"]).unwrap();
    while !has_all("cluster_state:ok") {
        clock.sleep(Duration::from_millis(20)).await;
    }
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("ready")).await.unwrap();
    server.cli(&["cluster", "delslotsrange", "16000", "16383"]).unwrap();
    while !has_all("cluster_state:fail") {
        clock.sleep(Duration::from_millis(20)).await;
    }
    let error = send(&redis, order("after")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("cluster info"), "{error}");
    server.cli(&["cluster", "addslotsrange", "16000", "16383"]).unwrap();
    send_surely(&redis, order("after")).await;
    assert_eq!(take(&consumer, 2).await, names(&["after", "ready"]));
}

/// By default its cluster port is ten thousand above its own port. A client may use that port, and
/// the server would not start.
#[test]
fn a_cluster_of_one_uses_a_free_cluster_port() {
    let server = RedisServer::start(RedisOptions::default().with("cluster-enabled", "yes")).unwrap();
    assert_ne!(said(&server, &["config", "get", "cluster-port"]), "cluster-port\n0");
}

/// Tests what the documentation says about a truncated log: without a repair, the second start
/// would apply half a script.
#[test]
fn a_partially_written_script_has_no_effect_after_any_restart() {
    let mut server = RedisServer::start(RedisOptions::default().with("appendfsync", "always")).unwrap();
    let said = |server: &RedisServer, arguments: &[&str]| {
        String::from_utf8(server.cli(arguments).unwrap().stdout).unwrap().trim().to_owned()
    };
    let script =
        "redis.call('XADD', 'one', '*', 'a', 1) redis.call('XADD', 'two', '*', 'a', 1) return 'done'";
    assert_eq!(said(&server, &["eval", script, "0"]), "done");
    let directory = said(&server, &["--raw", "config", "get", "dir"]).lines().nth(1).unwrap().to_owned();
    server.kill();
    let log = Path::new(&directory).join("appendonlydir").join("appendonly.aof.1.incr.aof");
    let log = File::options().write(true).open(log).unwrap();
    log.set_len(log.metadata().unwrap().len() - 30).unwrap();

    server.resume().unwrap();
    assert_eq!(said(&server, &["eval", script, "0"]), "done");
    server.restart().unwrap();
    assert_eq!(["one", "two"].map(|stream| said(&server, &["xlen", stream])), ["1", "1"]);
}
