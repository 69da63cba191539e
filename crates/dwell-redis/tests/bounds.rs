//! Limits of one delivery batch, and messages outside the first page.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Consumer, Delivery, Due, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle,
    Subscription, Transport, TransportUrl,
};
use dwell_redis::Redis;
use std::{sync::Arc, time::Duration};

const READY: &str = "dwell:{orders}:ready:mail";

async fn stage() -> (RedisServer, Redis, Arc<dyn Consumer>) {
    let server = RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap();
    let url = TransportUrl::parse(&server.url()).unwrap();
    let redis = dwell_redis::connect(&url, Seams::system("test")).await.unwrap();
    let mail = Subscription { lease: Duration::from_secs(300), ..Subscription::new("orders", "mail") };
    redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    let consumer = redis.consumer(mail).await.unwrap();
    (server, redis, consumer)
}

fn said(server: &RedisServer, arguments: &[&str]) -> String {
    String::from_utf8_lossy(&server.cli(arguments).unwrap().stdout).trim().to_owned()
}

async fn send(redis: &Redis, bodies: impl IntoIterator<Item = usize>) {
    let envelopes: Vec<_> = (0..)
        .zip(bodies)
        .map(|(n, size)| {
            let message = Message::new(format!("m{n}"), "orders.placed", vec![b'x'; size]);
            Envelope::new(Address::topic("orders"), message)
        })
        .collect();
    assert!(redis.producer().await.unwrap().send(&envelopes).await.iter().all(Result::is_ok));
}

async fn receive(consumer: &Arc<dyn Consumer>) -> Vec<Delivery> {
    consumer.receive(1000, Duration::from_secs(20), None).await.unwrap()
}

#[tokio::test]
async fn large_messages_are_delivered_in_order_within_the_byte_limit() {
    const MEGA: usize = 1 << 20;
    let (_server, redis, consumer) = stage().await;
    // Small messages before them do not cause large ones to be read together.
    let sizes = [vec![10; 100], vec![5 * MEGA; 5], vec![16 * MEGA], vec![10]].concat();
    send(&redis, sizes.clone()).await;
    let (mut seen, mut batches) = (vec![], vec![]);
    while seen.len() < sizes.len() {
        let batch = receive(&consumer).await;
        let sizes = || batch.iter().map(|delivery| delivery.message.body.len());
        batches.push(sizes().sum::<usize>() - sizes().max().unwrap_or(0));
        for delivery in batch {
            assert_eq!(delivery.deliveries, Some(1));
            seen.push(delivery.message.id.to_string());
        }
    }
    let sent: Vec<_> = (0..sizes.len()).map(|n| format!("m{n}")).collect();
    assert_eq!(seen, sent);
    assert!(batches.iter().all(|bytes| *bytes <= MEGA), "without the largest: {batches:?}");
    assert!(batches.len() <= 8, "{batches:?}");
}

#[tokio::test]
async fn a_receive_returns_at_most_500_messages_in_order() {
    let (server, redis, consumer) = stage().await;
    send(&redis, vec![10; 1200]).await;
    let (mut seen, mut batches, before) = (vec![], vec![], scripts(&server));
    while seen.len() < 1200 {
        let batch = receive(&consumer).await;
        batches.push(batch.len());
        seen.extend(batch.iter().map(|delivery| delivery.message.id.to_string()));
    }
    assert_eq!(batches, [500, 500, 200]);
    let scripts = scripts(&server) - before;
    assert!((12..20).contains(&scripts), "{scripts} scripts for 1200 messages");
    assert_eq!(seen, (0..1200).map(|n| format!("m{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_entry_with_any_id_is_delivered_extended_and_settled() {
    let (server, _redis, consumer) = stage().await;
    for entry in ["1763200800000-1048575", "1763200800000-1048576", "1763200800000-18446744073709551615"] {
        let added =
            said(&server, &["xadd", READY, entry, "id", entry, "type", "orders.placed", "body", "{}"]);
        assert_eq!(added, entry);
        let mut batch = receive(&consumer).await;
        assert_eq!(&*batch[0].message.id.0, entry);
        let lost = consumer.extend(vec![batch[0].receipt.lease()], None).await.unwrap();
        assert!(lost.is_empty(), "{entry}");
        let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
        let settle = Settle { delivery: batch.remove(0), action: Action::ACK, note };
        let unsettled = consumer.settle(vec![settle]).await;
        assert!(unsettled.is_empty(), "{entry}: {unsettled:?}");
        assert_eq!(said(&server, &["xlen", READY]), "0", "{entry}");
    }
}

#[tokio::test]
async fn a_batch_larger_than_one_script_is_processed_completely() {
    const MANY: usize = 10_000;
    let (server, redis, consumer) = stage().await;
    let envelopes: Vec<_> = (0..MANY)
        .map(|n| {
            let message = Message::new(format!("m{n}"), "orders.placed", "x");
            Envelope::new(Address::topic("orders"), message).due(Due::After(Duration::from_millis(200)))
        })
        .collect();
    assert!(redis.producer().await.unwrap().send(&envelopes).await.iter().all(Result::is_ok));
    let mut held = vec![];
    while held.len() < MANY {
        held.extend(consumer.receive(MANY, Duration::from_secs(20), None).await.unwrap());
    }
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    let batch = held.into_iter().map(|delivery| Settle { delivery, action: Action::ACK, note: note.clone() });
    let unsettled = consumer.settle(batch.collect()).await;
    assert!(unsettled.is_empty(), "{} are not settled", unsettled.len());
    assert_eq!(said(&server, &["xlen", READY]), "0");
    assert_eq!(said(&server, &["zcard", "dwell:{orders}:due"]), "0");
}

/// Returns the number of scripts that the server has run.
fn scripts(server: &RedisServer) -> usize {
    let stats = said(server, &["info", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse::<usize>().ok()
    });
    calls.sum()
}

#[tokio::test]
async fn messages_share_round_trips() {
    let (server, redis, consumer) = stage().await;
    send(&redis, [1; 1000]).await;
    let mut held = vec![];
    while held.len() < 1000 {
        held.extend(receive(&consumer).await);
    }
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    let batch = held.into_iter().map(|delivery| Settle { delivery, action: Action::ACK, note: note.clone() });
    assert!(consumer.settle(batch.collect()).await.is_empty());
    let scripts = scripts(&server);
    assert!(scripts < 50, "{scripts} scripts for 1000 messages");
}

#[tokio::test]
async fn batches_are_smaller_with_many_subscriptions() {
    let (server, redis, _consumer) = stage().await;
    let others: Vec<_> = (1..10).map(|n| Subscription::new("orders", format!("other{n}"))).collect();
    redis.provision(&[], &others, OnMissing::Create).await.unwrap();
    let before = scripts(&server);
    send(&redis, [1; 200]).await;
    let between = scripts(&server) - before;
    assert!((10..15).contains(&between), "{between} scripts for 200 messages to ten subscriptions");
    assert_eq!(said(&server, &["xlen", "dwell:{orders}:ready:other9"]), "200");
}

#[tokio::test]
async fn releases_are_split_into_small_scripts() {
    let (server, redis, consumer) = stage().await;
    send(&redis, [1; 300]).await;
    let mut held = vec![];
    while held.len() < 200 {
        held.extend(consumer.receive(200 - held.len(), Duration::from_secs(20), None).await.unwrap());
    }
    let before = scripts(&server);
    // Some because they are released, the others because their consumer closes.
    let note = Note { outcome: Outcome::Released, error: None, worker: "test".into(), moved_to: None };
    let release = |delivery| Settle { delivery, action: Action::Release, note: note.clone() };
    assert!(consumer.settle(held.drain(..100).map(release).collect()).await.is_empty());
    consumer.close().await.unwrap();
    let between = scripts(&server) - before;
    assert!((5 + 5..20).contains(&between), "{between} scripts for 200 releases");
    assert_eq!(said(&server, &["xlen", READY]), "300");
    assert_eq!(said(&server, &["exists", "dwell:{orders}:held:mail"]), "0");
}

#[tokio::test]
async fn a_stray_delivery_is_found_behind_many_leased_ones() {
    let (server, redis, consumer) = stage().await;
    send(&redis, [1; 3001]).await;
    let mut held = vec![];
    while held.len() < 3000 {
        held.extend(receive(&consumer).await);
    }
    // All have been idle for long, and the last is pending without a lease.
    let more = consumer.receive(1, Duration::ZERO, None).await.unwrap();
    assert!(held.len() == 3001 || more.len() == 1);
    let lua = "for _, p in ipairs(redis.call('XPENDING', KEYS[1], 'dwell', '-', '+', 10000)) do \
               redis.call('XCLAIM', KEYS[1], 'dwell', p[2], 0, p[1], 'IDLE', 120000, 'JUSTID') end \
               local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1][1] \
               redis.call('HDEL', KEYS[2], last) redis.call('ZREM', KEYS[3], last)";
    let made =
        said(&server, &["eval", lua, "3", READY, "dwell:{orders}:held:mail", "dwell:{orders}:leases:mail"]);
    assert_eq!(made, "");
    let background = redis.background(Box::pin(std::future::pending())).unwrap();
    let background = tokio::spawn(background);
    let found = receive(&consumer).await;
    assert_eq!(found.iter().map(|delivery| &*delivery.message.id.0).collect::<Vec<_>>(), ["m3000"]);
    assert_eq!(found[0].deliveries, Some(2));
    background.abort();
}
