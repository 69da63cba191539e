//! Topics that vanish, and several programs that create them again.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Consumer, Envelope, ErrorKind, OnMissing, Result, Seams, Settle, Subscription, Topic,
    Transport,
};
use stage::{PATIENCE, connect, mail, note, order, said, send, subscribed};
use std::{sync::Arc, time::Duration};

/// Returns the id of the next message, despite connection errors.
async fn receive(consumer: &Arc<dyn Consumer>) -> String {
    let clock = Seams::system("test").clock;
    let start = clock.elapsed();
    loop {
        match consumer.receive(1, PATIENCE, None).await {
            Ok(batch) => {
                return batch.first().map(|delivery| delivery.message.id.to_string()).unwrap_or_default();
            }
            Err(error) => assert!(clock.elapsed() - start < PATIENCE, "{error}"),
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the lease of `orders/mail` on the server.
fn lease_of_mail(server: &RedisServer) -> u64 {
    let settings = said(server, &["hget", "dwell:{orders}:topic", "subscription:mail"]);
    let lease = settings.strip_prefix("{\"lease\":").and_then(|rest| rest.split_once(','));
    lease.and_then(|(lease, _)| lease.parse().ok()).unwrap_or_else(|| panic!("{settings}"))
}

#[tokio::test]
async fn a_restore_creates_what_is_missing_and_changes_no_setting() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let (old, new) = (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    let bills = Subscription::new("bills", "pay");
    old.provision(&[], &[mail(), bills], OnMissing::Create).await.unwrap();
    let bill = || Envelope { to: Address::topic("bills"), ..order("bill") };
    let longer = Subscription { lease: Duration::from_secs(60), ..mail() };
    new.provision(&[], std::slice::from_ref(&longer), OnMissing::Create).await.unwrap();
    assert_eq!(lease_of_mail(&server), 60_000);

    // Another topic vanishes. The older process has not seen the new setting yet.
    said(&server, &["del", "dwell:{bills}:topic"]);
    send(&old, bill()).await.unwrap();
    assert_eq!(said(&server, &["hexists", "dwell:{bills}:topic", "subscription:pay"]), "1");
    assert_eq!(lease_of_mail(&server), 60_000, "the older process brought its own setting back");

    // All topics vanish. The older process restores the setting that it last saw.
    send(&old, order("a")).await.unwrap();
    said(&server, &["flushall"]);
    send(&old, order("a")).await.unwrap();
    assert_eq!(lease_of_mail(&server), 60_000);
    new.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    assert_eq!(lease_of_mail(&server), 2_000, "an explicit request still changes it");
}

#[tokio::test]
async fn concurrent_callers_share_one_restore() {
    const TOPICS: usize = 50;
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let topics: Vec<_> = (0..TOPICS).map(|n| Topic::named(format!("topic-{n}")).keep()).collect();
    redis.provision(&topics, &[], OnMissing::Create).await.unwrap();
    let batch: Vec<_> =
        topics.iter().map(|of| Envelope { to: Address::topic(of.name.clone()), ..order("a") }).collect();
    // One call for each topic, all at the same time.
    let send = async || {
        let sent = redis.producer().await.unwrap().send(&batch).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    };
    send().await;
    said(&server, &["flushall"]);
    said(&server, &["config", "resetstat"]);
    send().await;
    let stats = said(&server, &["info", "commandstats"]);
    let loads = stats.split_once("cmdstat_hgetall:calls=").and_then(|(_, rest)| rest.split_once(','));
    let loads: usize = loads.unwrap_or_else(|| panic!("{stats}")).0.parse().unwrap();
    // Each caller loads its topic, finds it missing and loads it again. A restore loads all topics
    // twice, and one that begins after it finds nothing missing.
    assert!(loads <= TOPICS * 6, "{loads} loads of {TOPICS} topics");
}

/// A subscription of `orders` that only another program knows.
fn stock() -> Subscription {
    Subscription::new("orders", "stock")
}

#[tokio::test]
async fn a_topic_that_cannot_be_restored_holds_up_no_other() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let (redis, other) = (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    redis.provision(&[], &[Subscription::new("bills", "pay")], OnMissing::Create).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("before")).await.unwrap();
    assert_eq!(receive(&consumer).await, "before");

    // The server comes back empty. One topic cannot be created, and another program creates the
    // other one without our subscription.
    said(&server, &["flushall"]);
    said(&server, &["set", "dwell:{bills}:topic", "no topic"]);
    other.provision(&[], &[stock()], OnMissing::Create).await.unwrap();
    send(&redis, order("after")).await.unwrap();
    assert_eq!(receive(&consumer).await, "after");
    let bill = Envelope { to: Address::topic("bills"), ..order("bill") };
    assert!(send(&redis, bill.clone()).await.is_err());
    said(&server, &["del", "dwell:{bills}:topic"]);
    send(&redis, bill).await.unwrap();
}

#[tokio::test]
async fn a_consumer_whose_subscription_vanished_gets_an_error_that_names_it() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let (redis, other) = (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    other.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    // It provisions nothing, so it creates nothing again.
    redis.provision(&[], &[mail()], OnMissing::Assume).await.unwrap();
    let consumer = redis.consumer(mail()).await.unwrap();
    send(&other, order("a")).await.unwrap();
    let delivery = consumer.receive(1, PATIENCE, None).await.unwrap().remove(0);
    other.close().await.unwrap();

    said(&server, &["flushall"]);
    let third = connect(&server.url()).await.unwrap();
    third.provision(&[], &[stock()], OnMissing::Create).await.unwrap();
    let lease = delivery.receipt.lease();
    assert_eq!(consumer.extend(vec![lease], None).await.unwrap(), [lease]);
    let settle = Settle { delivery, action: Action::Ack { result: None }, note: note() };
    let unsettled = consumer.settle(vec![settle]).await;
    assert_eq!(unsettled[0].error.kind(), ErrorKind::Stale, "{unsettled:?}");
    let error = consumer.receive(1, PATIENCE, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("`mail`"), "{error}");
    consumer.close().await.unwrap();
}

/// The publisher has no subscription of its own, and is the first to notice that the server is
/// empty.
#[tokio::test]
async fn events_published_to_an_emptied_server_reach_the_subscriptions_of_other_processes() {
    let mut server = RedisServer::start(RedisOptions::default()).unwrap();
    let (publisher, subscriber) =
        (connect(&server.url()).await.unwrap(), connect(&server.url()).await.unwrap());
    publisher.provision(&[Topic::named("orders")], &[], OnMissing::Create).await.unwrap();
    let consumer = subscribed(&subscriber).await;
    send(&publisher, order("before")).await.unwrap();
    assert_eq!(receive(&consumer).await, "before");
    for (id, is_restarted) in [("flushed", false), ("restarted", true)] {
        match is_restarted {
            true => server.restart_empty().unwrap(),
            false => drop(said(&server, &["flushall"])),
        }
        let clock = Seams::system("test").clock;
        while let Err(error) = send(&publisher, order(id)).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            clock.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(receive(&consumer).await, id);
    }
}

#[tokio::test]
async fn kept_messages_are_adopted_although_the_topic_discards_by_then() {
    let server = RedisServer::start(RedisOptions::default()).unwrap();
    let redis = connect(&server.url()).await.unwrap();
    let topic = Topic::named("orders");
    redis.provision(&[topic.clone().keep()], &[], OnMissing::Create).await.unwrap();
    send(&redis, order("kept")).await.unwrap();
    redis.provision(&[topic.discard()], &[], OnMissing::Create).await.unwrap();
    let consumer = subscribed(&redis).await;
    assert_eq!(receive(&consumer).await, "kept");
}
