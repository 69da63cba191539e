//! Calls that reach the server twice, or with an unknown outcome, have their effect once.

mod stage;

use dwell_conformance::{
    Proxy, Trouble,
    servers::redis::{RedisOptions, RedisServer},
};
use dwell_core::{
    Action, Address, Changed, Consumer, Delivery, Due, Envelope, ErrorKind, OnMissing, Result, Seams, Sent,
    Settle, Subscription, Transport, TransportUrl, Unsettled,
};
use dwell_redis::Redis;
use stage::{PATIENCE, is_waiting, note, order, said};
use std::{sync::Arc, time::Duration};

/// Short enough for a test that waits for it, and long enough for a busy machine.
const IMPATIENT: &str = "timeout=1s";

/// Part of every request that runs a script.
const SCRIPT: &str = "EVALSHA";

struct Stage {
    server: RedisServer,
    proxy: Proxy,
    redis: Redis,
    consumer: Arc<dyn Consumer>,
}

fn mail() -> Subscription {
    // Longer than any test, so that no redelivery is caused by an expired lease.
    Subscription { lease: Duration::from_secs(300), ..Subscription::new("orders", "mail") }
}

async fn connect(url: &str) -> (Redis, Arc<dyn Consumer>) {
    let url = TransportUrl::parse(url).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    redis.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let consumer = redis.consumer(mail()).await.unwrap();
    (redis, consumer)
}

impl Stage {
    /// Starts a server behind an unreliable connection: alone, or as a cluster of one, where the
    /// client library itself repeats commands.
    async fn new(is_cluster: bool, options: &str) -> Self {
        let proxy = Proxy::start().await.unwrap();
        let mut settings = RedisOptions::default().with("appendonly", "no");
        if is_cluster {
            settings = settings
                .with("cluster-enabled", "yes")
                .with("cluster-announce-ip", "127.0.0.1")
                .with("cluster-announce-port", &proxy.port().to_string());
        }
        let server = RedisServer::start(settings).unwrap();
        if is_cluster {
            server.cli(&["cluster", "addslotsrange", "0", "16383"]).unwrap();
            let clock = Seams::system("test").clock;
            while !said(&server, &["cluster", "info"]).contains("cluster_state:ok") {
                clock.sleep(Duration::from_millis(20)).await;
            }
        }
        proxy.redirect(server.port());
        let (redis, consumer) = connect(&format!("redis://127.0.0.1:{}?{options}", proxy.port())).await;
        let stage = Self { server, proxy, redis, consumer };
        // From now on the server knows every script that is used here.
        stage.sent(order("first")).await;
        stage.sent(order("waits").due(Due::After(Duration::from_secs(3600)))).await;
        stage.cancel("waits").await;
        let first = stage.receive().await;
        assert_eq!(ids(&first), ["first"]);
        assert!(stage.settle(first).await);
        stage
    }

    async fn send(&self, envelope: Envelope) -> Result<Sent> {
        self.redis.producer().await?.send(&[envelope]).await.pop().unwrap()
    }

    /// Sends it, and retries timeouts.
    async fn sent(&self, envelope: Envelope) {
        self.until(async || self.send(envelope.clone()).await.map(|_| true)).await;
    }

    async fn cancel(&self, id: &str) -> Changed {
        self.redis.scheduler().unwrap().cancel(&id.into()).await.unwrap()
    }

    /// Receives, and retries. Deliveries of a receive without an answer come with the next one.
    async fn receive(&self) -> Vec<Delivery> {
        loop {
            match self.consumer.receive(10, Duration::from_millis(500), None).await {
                Ok(batch) => return batch,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
    }

    async fn settle(&self, batch: Vec<Delivery>) -> bool {
        let settle = batch.into_iter().map(|delivery| Settle { delivery, action: Action::ACK, note: note() });
        self.consumer.settle(settle.collect()).await.is_empty()
    }

    /// Retries until the condition holds. The connection may still be down for a moment.
    async fn until(&self, is_so: impl AsyncFn() -> Result<bool>) {
        let clock = Seams::system("test").clock;
        let since = clock.elapsed();
        loop {
            match is_so().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            assert!(clock.elapsed() - since < PATIENCE);
        }
    }

    /// Returns the length of the stream.
    fn stored(&self) -> String {
        said(&self.server, &["xlen", "dwell:{orders}:ready:mail"])
    }
}

fn ids(batch: &[Delivery]) -> Vec<&str> {
    batch.iter().map(|delivery| &*delivery.message.id.0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_before_the_answer_repeats_nothing() {
    for is_cluster in [false, true] {
        for trouble in [Trouble::ResetAfter, Trouble::ResetBefore] {
            let stage = Stage::new(is_cluster, "").await;
            let case = format!("cluster {is_cluster}, {trouble:?}");
            stage.proxy.break_next(SCRIPT, trouble);
            stage.send(order("a")).await.expect(&case);
            assert!(stage.proxy.is_over(), "{case}");
            assert_eq!(stage.stored(), "1", "{case}");

            stage.sent(order("waits").due(Due::After(Duration::from_secs(3600)))).await;
            stage.proxy.break_next(SCRIPT, trouble);
            assert_eq!(stage.cancel("waits").await, Changed::Done, "{case}");
            assert!(stage.proxy.is_over(), "{case}");

            stage.proxy.break_next(SCRIPT, trouble);
            let batch = stage.receive().await;
            assert!(stage.proxy.is_over(), "{case}");
            assert_eq!(ids(&batch), ["a"], "{case}: the repeated call returns the same delivery");
            assert_eq!(batch[0].deliveries, Some(1), "{case}");

            stage.proxy.break_next(SCRIPT, trouble);
            assert!(stage.settle(batch).await, "{case}: the repeated settlement is not stale");
            assert!(stage.proxy.is_over(), "{case}");
            assert_eq!(stage.stored(), "0", "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_after_a_lost_answer_is_stored_once() {
    for trouble in [Trouble::Silence, Trouble::Late] {
        let stage = Stage::new(false, IMPATIENT).await;
        stage.proxy.break_next(SCRIPT, trouble);
        let error = stage.send(order("a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        let clock = Seams::system("test").clock;
        let since = clock.elapsed();
        while let Err(error) = stage.send(order("a")).await {
            assert!(error.is_retryable() && clock.elapsed() - since < PATIENCE, "{error:?}");
        }
        if trouble == Trouble::Late {
            // The first arrives after the second.
            assert_eq!(stage.stored(), "1");
            stage.proxy.let_go().await;
        }
        assert_eq!(stage.stored(), "1", "{trouble:?}");
        // Another send of the same message is not a repetition.
        stage.sent(order("a")).await;
        assert_eq!(stage.stored(), "2", "{trouble:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_after_other_errors_is_stored_once() {
    let stage = Stage::new(false, IMPATIENT).await;
    stage.proxy.break_next(SCRIPT, Trouble::Silence);
    assert_eq!(stage.send(order("a")).await.unwrap_err().kind(), ErrorKind::Timeout);
    said(&stage.server, &["config", "set", "maxmemory", "1mb"]);
    stage
        .until(async || Ok(stage.send(order("a")).await.unwrap_err().kind() == ErrorKind::StorageFull))
        .await;
    said(&stage.server, &["config", "set", "maxmemory", "0"]);
    said(&stage.server, &["set", "dwell:{orders}:aliases", "mine"]);
    stage.until(async || Ok(stage.send(order("a")).await.unwrap_err().kind() == ErrorKind::Conflict)).await;
    said(&stage.server, &["del", "dwell:{orders}:aliases"]);
    stage.until(async || stage.send(order("a")).await.map(|_| true)).await;
    assert_eq!(stage.stored(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_to_a_later_subscription_is_stored_once() {
    let stage = Stage::new(false, IMPATIENT).await;
    let late = Subscription { name: "late".into(), ..mail() };
    let to_late = Envelope { to: late.address(), ..order("a") };
    let stored = || said(&stage.server, &["exists", "dwell:{orders}:ready:late"]) == "1";
    stage.proxy.break_next(SCRIPT, Trouble::Silence);
    assert_eq!(stage.send(to_late.clone()).await.unwrap_err().kind(), ErrorKind::Timeout);
    stage
        .until(async || {
            stage.redis.provision(&[], std::slice::from_ref(&late), OnMissing::Create).await.map(|()| true)
        })
        .await;
    while !stored() {
        stage.proxy.break_next(SCRIPT, Trouble::Silence);
        stage.send(to_late.clone()).await.unwrap_err();
    }
    stage.until(async || stage.send(to_late.clone()).await.map(|_| true)).await;
    assert_eq!(said(&stage.server, &["xlen", "dwell:{orders}:ready:late"]), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_after_a_cancellation_is_stored_once() {
    // A single message is batched in a separate task, which ends with its runtime; many messages
    // are sent directly.
    for many in [1, 60] {
        let stage = Stage::new(false, "").await;
        let proxy = &stage.proxy;
        let batch: Vec<_> = (0..many).map(|n| order(&format!("m{n}"))).collect();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        // A separate connection for this runtime, so that the sending task ends with it.
        let url = TransportUrl::parse(&format!("redis://127.0.0.1:{}", proxy.port())).unwrap();
        let other = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
        proxy.break_next(SCRIPT, Trouble::Silence);
        let (sender, again) = (other.clone(), batch.clone());
        let sends = runtime.spawn(async move { sender.producer().await.unwrap().send(&batch).await });
        let clock = Seams::system("test").clock;
        while stage.stored() == "0" {
            clock.sleep(Duration::from_millis(5)).await;
        }
        runtime.shutdown_background();
        assert!(sends.await.is_err(), "the task was cancelled");
        stage
            .until(async || {
                let sent = other.producer().await?.send(&again).await;
                sent.into_iter().collect::<Result<Vec<_>>>().map(|_| true)
            })
            .await;
        assert_eq!(stage.stored(), many.to_string());
    }
}

/// An unknown lease would expire, and count as a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_whose_answer_was_lost_comes_with_the_next_receive() {
    for trouble in [Trouble::Silence, Trouble::Late] {
        let stage = Stage::new(false, IMPATIENT).await;
        for id in ["a", "b", "c"] {
            stage.sent(order(id)).await;
        }
        stage.proxy.break_next(SCRIPT, trouble);
        let error = stage.consumer.receive(3, Duration::ZERO, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{trouble:?}");
        // The next receive requests fewer: the surplus is released unchanged.
        let mut seen = vec![];
        while seen.len() < 3 {
            match stage.consumer.receive(2, PATIENCE, None).await {
                Ok(batch) => {
                    assert!(batch.len() <= 2, "{trouble:?}");
                    assert!(batch.iter().all(|delivery| delivery.deliveries == Some(1)), "{trouble:?}");
                    seen.extend(ids(&batch).iter().map(|id| (*id).to_owned()));
                    assert!(stage.settle(batch).await);
                }
                Err(error) => assert!(error.is_retryable(), "{trouble:?}: {error}"),
            }
        }
        assert_eq!(seen, ["a", "b", "c"], "{trouble:?}");
        if trouble == Trouble::Late {
            stage.sent(order("d")).await;
            stage.proxy.let_go().await;
            let batch = stage.receive().await;
            assert_eq!(ids(&batch), ["d"], "the first receive is outdated and leases nothing");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_receive_leases_nothing_after_another_receive() {
    let stage = Stage::new(false, IMPATIENT).await;
    stage.proxy.break_next(SCRIPT, Trouble::Late);
    assert_eq!(stage.consumer.receive(1, Duration::ZERO, None).await.unwrap_err().kind(), ErrorKind::Timeout);
    stage
        .until(async || stage.consumer.receive(1, Duration::ZERO, None).await.map(|batch| batch.is_empty()))
        .await;
    stage.sent(order("a")).await;
    stage.proxy.let_go().await;
    assert_eq!(ids(&stage.receive().await), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_receive_leases_nothing_after_its_consumer_closed() {
    let stage = Stage::new(false, IMPATIENT).await;
    stage.proxy.break_next(SCRIPT, Trouble::Late);
    assert_eq!(stage.consumer.receive(1, Duration::ZERO, None).await.unwrap_err().kind(), ErrorKind::Timeout);
    stage.sent(order("a")).await;
    stage.redis.close().await.unwrap();
    stage.proxy.let_go().await;
    let pending = said(&stage.server, &["xpending", "dwell:{orders}:ready:mail", "dwell"]);
    assert!(pending.starts_with('0'), "{pending}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_settlement_after_a_lost_answer_is_not_stale() {
    for trouble in [Trouble::Silence, Trouble::Late] {
        let stage = Stage::new(false, IMPATIENT).await;
        stage.sent(order("a")).await;
        let mut batch = stage.receive().await;
        let settle = Settle { delivery: batch.remove(0), action: Action::ACK, note: note() };
        stage.proxy.break_next(SCRIPT, trouble);
        let mut unsettled = stage.consumer.settle(vec![settle]).await;
        assert_eq!(unsettled[0].error.kind(), ErrorKind::Timeout, "{trouble:?}");
        while let Some(again) = unsettled.pop() {
            assert!(again.error.is_retryable(), "{trouble:?}: {}", again.error);
            unsettled = stage.consumer.settle(vec![again.settle]).await;
        }
        if trouble == Trouble::Late {
            stage.proxy.let_go().await;
        }
        assert_eq!(stage.stored(), "0", "{trouble:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_was_lost_twice_is_not_stale() {
    let stage = Stage::new(false, IMPATIENT).await;
    for id in ["a", "b"] {
        stage.sent(order(id)).await;
    }
    let settle = |delivery| Settle { delivery, action: Action::ACK, note: note() };
    let mut batch: Vec<_> = stage.receive().await.into_iter().map(settle).collect();
    assert_eq!(batch.len(), 2);
    // Both are in the first call, which is still in flight when the connection breaks.
    stage.proxy.break_next(SCRIPT, Trouble::Late);
    batch = again(stage.consumer.settle(batch).await);
    assert!(stage.proxy.is_over());
    // One of them is settled by a call without an answer. While the connection is down, calls fail
    // before they are made.
    let other = batch.pop().unwrap();
    while stage.stored() == "2" {
        stage.proxy.break_next(SCRIPT, Trouble::Silence);
        batch = again(stage.consumer.settle(batch).await);
    }
    while !batch.is_empty() {
        batch = again(stage.consumer.settle(batch).await);
    }
    // The first call is outdated for the other delivery, which is settled separately.
    stage.proxy.let_go().await;
    assert_eq!(stage.stored(), "1");
    let unsettled = stage.consumer.settle(vec![other]).await;
    assert!(unsettled.is_empty(), "{unsettled:?}");
    assert_eq!(stage.stored(), "0");
}

/// Returns the settlements to repeat.
fn again(unsettled: Vec<Unsettled>) -> Vec<Settle> {
    let again = unsettled.into_iter().map(|unsettled| {
        assert!(unsettled.error.is_retryable(), "{}", unsettled.error);
        unsettled.settle
    });
    again.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_not_confirmed_by_replicas_can_be_repeated_and_is_stored_once() {
    let stage = Stage::new(false, "").await;
    let url = TransportUrl::parse(&format!("{}?replicas=1&timeout=3s", stage.server.url())).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    let producer = redis.producer().await.unwrap();
    let copy = Envelope::copy(Address::topic("orders"), order("a").message);
    for envelope in [copy, order("b")] {
        for _ in 0..3 {
            let error = producer.send(std::slice::from_ref(&envelope)).await.pop().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout);
            assert!(
                error.to_string().contains("is stored") && error.to_string().contains("1 replicas"),
                "{error}"
            );
        }
    }
    assert_eq!(stage.stored(), "2");

    // After the server has lost its calls, the message is stored again.
    said(
        &stage.server,
        &["eval", "for _, k in ipairs(redis.call('keys', '*:calls:*')) do redis.call('del', k) end", "0"],
    );
    said(&stage.server, &["del", "dwell:{orders}:ready:mail"]);
    producer.send(&[order("b")]).await.pop().unwrap().unwrap_err();
    assert_eq!(stage.stored(), "1");

    let replica = RedisServer::start(RedisOptions::default()).unwrap();
    replica.cli(&["replicaof", "127.0.0.1", &stage.server.port().to_string()]).unwrap();
    let clock = Seams::system("test").clock;
    let since = clock.elapsed();
    while let Err(error) = producer.send(&[order("b")]).await.pop().unwrap() {
        assert!(clock.elapsed() - since < PATIENCE, "{error:?}");
    }
    assert_eq!(stage.stored(), "1");
    assert_eq!(said(&replica, &["xlen", "dwell:{orders}:ready:mail"]), "1");
}

/// On another connection without a write, the server would confirm at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_replicas_on_a_broken_connection_confirms_nothing() {
    for is_cluster in [false, true] {
        let stage = Stage::new(is_cluster, "").await;
        let replica = RedisServer::start(RedisOptions::default()).unwrap();
        replica.cli(&["replicaof", "127.0.0.1", &stage.server.port().to_string()]).unwrap();
        let url = format!("redis://127.0.0.1:{}?replicas=1&timeout=3s", stage.proxy.port());
        let url = TransportUrl::parse(&url).unwrap();
        let sure = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
        let send = async |id| sure.producer().await?.send(&[order(id)]).await.pop().unwrap();
        stage.until(async || send("a").await.map(|_| true)).await;
        // The replica stays connected, but receives nothing.
        let signal = |name: &str| {
            let pid = replica.pid().unwrap().to_string();
            assert!(std::process::Command::new("kill").args([name, &*pid]).status().unwrap().success());
        };
        signal("-STOP");
        stage.proxy.break_next("WAIT\r\n", Trouble::ResetBefore);
        let sent = send("b").await;
        assert!(stage.proxy.is_over(), "cluster {is_cluster}");
        signal("-CONT");
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Timeout, "cluster {is_cluster}");
        stage.until(async || send("b").await.map(|_| true)).await;
        assert_eq!(stage.stored(), "2", "cluster {is_cluster}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_replaced() {
    let stage = Stage::new(false, "").await;
    let replica = RedisServer::start(RedisOptions::default()).unwrap();
    replica.cli(&["replicaof", "127.0.0.1", &stage.server.port().to_string()]).unwrap();
    let url = format!("redis://127.0.0.1:{}?replicas=1&timeout=4s", stage.proxy.port());
    let url = TransportUrl::parse(&url).unwrap();
    let sure = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    let send = async |id| sure.producer().await?.send(&[order(id)]).await.pop().unwrap();
    stage.until(async || send("a").await.map(|_| true)).await;
    stage.proxy.freeze_existing();
    let (clock, timeout) = (Seams::system("test").clock, Duration::from_secs(4));
    let start = clock.elapsed();
    stage.until(async || send("b").await.map(|_| true)).await;
    let took = clock.elapsed() - start;
    // The wait for replicas would take a second timeout on its old connection.
    assert!(took < timeout * 2, "{took:?}");
    assert_eq!(stage.stored(), "2");
}

/// Callers that time out early must not prevent the probe of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced_even_if_all_callers_time_out_early() {
    let stage = Stage::new(false, "timeout=2s").await;
    let clock = Seams::system("test").clock;
    let batch: Vec<_> = (0..60).map(|n| order(&format!("m{n}"))).collect();
    let producer = stage.redis.producer().await.unwrap();
    stage.proxy.freeze_existing();
    let start = clock.elapsed();
    loop {
        let sent = tokio::select! {
            biased;
            sent = producer.send(&batch) => sent.into_iter().collect::<Result<Vec<_>>>().is_ok(),
            () = clock.sleep(Duration::from_millis(300)) => false,
        };
        if sent {
            break;
        }
        // Before the operating system closes the connection.
        assert!(clock.elapsed() - start < Duration::from_secs(9), "it was not replaced");
    }
    assert_eq!(stage.stored(), "60");
}

/// Its `PING` takes longer than half of the `timeout`, as every call does.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_connection_that_answers_is_not_replaced() {
    let stage = Stage::new(false, "timeout=4s").await;
    let accepted = stage.proxy.accepted();
    stage.proxy.delay(Duration::from_millis(2800));
    for id in ["a", "b"] {
        stage.send(order(id)).await.unwrap();
    }
    assert_eq!(stage.proxy.accepted(), accepted);
    stage.proxy.pass();
    assert_eq!(stage.stored(), "2");
}

/// Sends wait for the replica; other calls do not.
#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_replica_blocks_only_sends() {
    let stage = Stage::new(false, "").await;
    // A send waits for half of it, which is longer than this test.
    let url = TransportUrl::parse(&format!("{}?replicas=1&timeout=2m", stage.server.url())).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    for id in ["a", "b"] {
        stage.sent(order(id)).await;
    }
    let consumer = redis.consumer(mail()).await.unwrap();
    let mut held = consumer.receive(1, PATIENCE, None).await.unwrap();
    let (producer, inbox) = (redis.producer().await.unwrap(), redis.inbox().unwrap());
    let sends = tokio::spawn(async move {
        let (unsent, id) = ([order("c")], "c".into());
        tokio::join!(producer.send(&unsent), inbox.done("orders/mail", &id, PATIENCE))
    });
    let is_waiting = || is_waiting(&stage.server);
    let clock = Seams::system("test").clock;
    while !is_waiting() {
        assert!(!sends.is_finished(), "no replica confirms it");
        clock.sleep(Duration::from_millis(10)).await;
    }
    let lost = consumer.extend(vec![held[0].receipt.lease()], None).await.unwrap();
    assert!(lost.is_empty());
    held.extend(consumer.receive(1, PATIENCE, None).await.unwrap());
    assert_eq!(ids(&held), ["a", "b"]);
    let settle = held.into_iter().map(|delivery| Settle { delivery, action: Action::ACK, note: note() });
    assert!(consumer.settle(settle.collect()).await.is_empty());
    assert!(is_waiting() && !sends.is_finished(), "none of these calls was blocked");

    let replica = RedisServer::start(RedisOptions::default()).unwrap();
    replica.cli(&["replicaof", "127.0.0.1", &stage.server.port().to_string()]).unwrap();
    let (sent, noted) = sends.await.unwrap();
    assert!(sent[0].is_ok(), "{sent:?}");
    noted.unwrap();
    assert_eq!(stage.stored(), "1");
}

#[tokio::test]
async fn a_dead_blocking_connection_is_replaced_and_messages_arrive() {
    let stage = Stage::new(false, "").await;
    stage.proxy.break_next("XREAD\r\n", Trouble::Deaf);
    let waits = async {
        // The first wait is on that connection, but waiters also poll.
        let mut seen = vec![];
        while seen.len() < 2 {
            let batch = stage.consumer.receive(1, PATIENCE, None).await.unwrap();
            seen.extend(ids(&batch).iter().map(|id| (*id).to_owned()));
            assert!(stage.settle(batch).await);
        }
        seen
    };
    let sends = async {
        let clock = Seams::system("test").clock;
        while !stage.proxy.is_over() {
            clock.sleep(Duration::from_millis(20)).await;
        }
        stage.sent(order("meanwhile")).await;
        stage.proxy.is_given_up().await;
        stage.sent(order("afterwards")).await;
    };
    let (seen, ()) = tokio::join!(waits, sends);
    assert_eq!(seen, ["meanwhile", "afterwards"]);
}
