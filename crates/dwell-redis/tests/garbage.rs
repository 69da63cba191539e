//! Data that another program has written into Dwell's keys: it is delivered with a problem, and
//! does not affect other messages.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{Action, Consumer, Delivery, Due, Envelope, OnMissing, Query, Subscription, Transport};
use dwell_redis::Redis;
use stage::{PATIENCE, connect, mail, order, said, send, settle, subscribed};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const WAITING: &str = "dwell:{orders}:waiting";
const DUE: &str = "dwell:{orders}:due";
const READY: &str = "dwell:{orders}:ready:mail";
const LEASES: &str = "dwell:{orders}:leases:mail";

/// Values that are not valid items, as a script would write them.
const BAD: [&str; 12] = [
    "{'id', 'b0', 'handled', 'nan', 'body', 'x'}",
    "{'id', 'b1', 'failed', 'inf', 'body', 'x'}",
    "{'id', 'b2', 'handled', '1e999', 'tries', 'many', 'born', 'nan', 'body', 'x'}",
    "{'id', 'b3', 'n', '77', 'born', 'soon', 'body', 'x'}",
    "{'body'}",
    "{}",
    "{body = 'x'}",
    "{'body', {1, 2}}",
    "{'body', 7}",
    "42",
    "'text'",
    "nil",
];

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap()
}

/// Receives this number of messages, each once.
async fn receive(consumer: &Arc<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut held = vec![];
    while held.len() < count {
        let batch = consumer.receive(count, PATIENCE, Some(PATIENCE * 10)).await.unwrap();
        assert!(!batch.is_empty(), "only {:?}", ids(&held));
        held.extend(batch);
    }
    assert_eq!(ids(&held).len(), count);
    held
}

fn ids(batch: &[Delivery]) -> BTreeSet<String> {
    batch.iter().map(|delivery| delivery.message.id.to_string()).collect()
}

#[tokio::test]
async fn invalid_pending_and_ready_items_do_not_affect_other_messages() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    let mut all = BTreeSet::new();
    for (n, value) in BAD.iter().enumerate() {
        let (fine, name) = (format!("fine{n}"), format!("bad{n}"));
        send(&redis, order(&fine).due(Due::After(Duration::from_millis(1)))).await.unwrap();
        let lua = format!(
            "redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack({value})) redis.call('ZADD', KEYS[2], 1, ARGV[1])"
        );
        assert_eq!(said(&server, &["eval", &lua, "2", WAITING, DUE, &name]), "");
        all.extend([fine, if n < 4 { format!("b{n}") } else { name }]);
    }
    for (name, value) in [("raw", "no MessagePack at all"), ("empty", "")] {
        said(&server, &["hset", WAITING, name, value]);
        said(&server, &["zadd", DUE, "1", name]);
        all.insert(name.to_owned());
    }
    let by_hand = ["id", "by-hand", "tries", "many", "failed", "nan", "n", "88", "body", "x"];
    said(&server, &[&["xadd", READY, "*"], &by_hand[..]].concat());
    all.insert("by-hand".to_owned());

    assert_eq!(ids(&receive(&consumer, all.len()).await), all);
    // Their leases expire, so they are redelivered.
    let lua =
        "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, e) end";
    said(&server, &["eval", lua, "1", LEASES]);
    let held = receive(&consumer, all.len()).await;
    assert_eq!(ids(&held), all);
    assert!(held.iter().all(|delivery| delivery.deliveries == Some(2)));
    for delivery in held {
        settle(&consumer, delivery, Action::Release).await;
    }
    for delivery in receive(&consumer, all.len()).await {
        settle(&consumer, delivery, Action::Move { to: mail().address(), due: Due::NOW }).await;
    }
    let held = receive(&consumer, all.len()).await;
    assert_eq!(ids(&held), all);
    for delivery in held {
        settle(&consumer, delivery, Action::ACK).await;
    }
    assert_eq!(said(&server, &["exists", WAITING, DUE, LEASES, "dwell:{orders}:held:mail"]), "0");
    assert_eq!(said(&server, &["xlen", READY]), "0");
}

async fn of_stock(redis: &Redis) -> Arc<dyn Consumer> {
    let stock = Subscription { name: "stock".into(), ..mail() };
    redis.provision(&[], std::slice::from_ref(&stock), OnMissing::Create).await.unwrap();
    redis.consumer(stock).await.unwrap()
}

/// Returns all counts.
fn counts(server: &RedisServer) -> String {
    said(server, &["hgetall", "dwell:{orders}:counts"]).replace('\n', " ")
}

#[tokio::test]
async fn a_message_stays_pending_while_its_stream_is_full() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let (mail, stock) = (subscribed(&redis).await, of_stock(&redis).await);
    send(&redis, order("a").due(Due::After(PATIENCE * 10))).await.unwrap();
    let before = counts(&server);
    said(&server, &["set", "dwell:{orders}:sequence", "none"]);
    for _ in 0..3 {
        said(&server, &["zadd", DUE, "1", "a@orders"]);
        assert!(mail.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
        assert_eq!(said(&server, &["hlen", WAITING]), "1");
        assert_eq!((said(&server, &["xlen", READY]), counts(&server)), ("0".to_owned(), before.clone()));
    }
    said(&server, &["set", "dwell:{orders}:sequence", "1000"]);
    said(&server, &["zadd", DUE, "1", "a@orders"]);
    for consumer in [mail, stock] {
        assert_eq!(ids(&receive(&consumer, 1).await), ["a".to_owned()].into());
    }
    assert_eq!(said(&server, &["hlen", WAITING]), "0");
}

#[tokio::test]
async fn a_full_stream_delays_only_its_own_subscription() {
    let server = server();
    for options in ["", "?ledger=false"] {
        let redis = connect(&format!("{}{options}", server.url())).await.unwrap();
        let (mail, stock) = (subscribed(&redis).await, of_stock(&redis).await);
        let stock_ready = "dwell:{orders}:ready:stock";
        // This creates the stream. After the highest entry id, nothing can be added.
        assert!(stock.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
        let last = "18446744073709551615-18446744073709551615";
        said(&server, &["xsetid", stock_ready, last]);
        send(&redis, order("a").due(Due::After(PATIENCE * 10))).await.unwrap();
        send(&redis, order("b")).await.unwrap();
        said(&server, &["zadd", DUE, "1", "a@orders"]);
        let held = receive(&mail, 2).await;
        assert_eq!(ids(&held), ["a".to_owned(), "b".to_owned()].into());
        let before = (counts(&server), said(&server, &["zcard", "dwell:{orders}:records"]));
        for _ in 0..3 {
            said(&server, &["zadd", DUE, "1", "a@orders/stock", "1", "b@orders/stock"]);
            assert!(mail.receive(2, Duration::ZERO, None).await.unwrap().is_empty());
            assert_eq!(said(&server, &["hlen", WAITING]), "2");
            assert_eq!(said(&server, &["xlen", READY]), "2");
            let now = (counts(&server), said(&server, &["zcard", "dwell:{orders}:records"]));
            assert_eq!(now, before);
        }
        if options.is_empty() {
            assert!(before.0.contains("orders/stock|scheduled 2"), "{}", before.0);
            assert_eq!(before.1, "4");
        }
        said(&server, &["xsetid", stock_ready, "1-1"]);
        said(&server, &["zadd", DUE, "1", "a@orders/stock", "1", "b@orders/stock"]);
        assert_eq!(ids(&receive(&stock, 2).await), ids(&held));
        assert_eq!(said(&server, &["exists", WAITING, DUE, "dwell:{orders}:aliases"]), "0");
        said(&server, &["flushall"]);
    }
}

#[tokio::test]
async fn a_redelivered_item_loses_fields_beyond_the_limit_of_scripts() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    let fields: Vec<_> = (0..4000).map(|n| format!("field{n}")).collect();
    let fields = fields.iter().flat_map(|name| [&**name, "x"]);
    let entry: Vec<_> =
        ["xadd", READY, "*"].into_iter().chain(fields).chain(["id", "many", "body", "x"]).collect();
    said(&server, &entry);
    for round in 1..=3 {
        let held = receive(&consumer, 1).await;
        assert_eq!((ids(&held), held[0].deliveries), (["many".to_owned()].into(), Some(round)));
        assert_eq!(&held[0].message.body[..], b"x");
        assert_eq!(counts(&server), "orders/mail|processing 1");
        let entry = said(&server, &["zrange", LEASES, "0", "0"]);
        said(&server, &["zadd", LEASES, "1", &entry]);
    }
    let held = receive(&consumer, 1).await;
    assert_eq!(said(&server, &["zcard", "dwell:{orders}:records"]), "1");
    for delivery in held {
        settle(&consumer, delivery, Action::ACK).await;
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_taken_in_does_not_block_ready_ones() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let (mail, stock) = (subscribed(&redis).await, of_stock(&redis).await);
    send(&redis, order("a")).await.unwrap();
    said(&server, &["xsetid", READY, "18446744073709551615-18446744073709551615"]);
    let incoming = "dwell:{orders}:incoming";
    said(&server, &["xadd", incoming, "*", "id", "b", "to", "mail", "body", "x"]);
    let before = said(&server, &["zcard", "dwell:{orders}:records"]);
    assert_eq!(ids(&receive(&stock, 1).await), ["a".to_owned()].into());
    for delivery in receive(&mail, 1).await {
        settle(&mail, delivery, Action::ACK).await;
    }
    let looks = || {
        let stats = said(&server, &["info", "commandstats"]);
        let calls =
            stats.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
        calls.map(|calls| calls.parse::<u32>().unwrap()).sum::<u32>()
    };
    let looked = looks();
    assert!(mail.receive(1, Duration::from_secs(1), None).await.unwrap().is_empty());
    assert!(looks() - looked < 20, "consumers wait, and do not poll continuously");
    assert_eq!(said(&server, &["xlen", incoming]), "1");
    assert_eq!(said(&server, &["zcard", "dwell:{orders}:records"]), before);
    said(&server, &["xadd", incoming, "*", "id", "c", "to", "stock", "body", "x"]);
    assert_eq!(ids(&receive(&stock, 1).await), ["c".to_owned()].into(), "it does not block other messages");
    said(&server, &["del", READY]);
    assert_eq!(ids(&receive(&mail, 1).await), ["b".to_owned()].into());
}

#[tokio::test]
async fn delay_and_subscription_count_at_any_position_among_many_fields() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let (mail, _stock) = (subscribed(&redis).await, of_stock(&redis).await);
    let fields: Vec<_> = (0..600).map(|n| format!("field{n}")).collect();
    let fields = fields.iter().flat_map(|name| [&**name, "x"]);
    let last = ["id", "late", "to", "stock", "delay", "3600000", "body", "x"];
    let entry: Vec<_> =
        ["xadd", "dwell:{orders}:incoming", "*"].into_iter().chain(fields).chain(last).collect();
    said(&server, &entry);
    assert!(mail.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
    let waits = redis.scheduler().unwrap().pending(Query { limit: 10, ..Query::default() }).await.unwrap();
    let [only] = &waits[..] else { panic!("{waits:?}") };
    assert_eq!((&*only.id.0, only.envelope.to.to_string()), ("late@orders/stock", "orders/stock".to_owned()));
}

#[tokio::test]
async fn a_message_delayed_by_a_full_stream_is_listed_once() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let (_mail, stock) = (subscribed(&redis).await, of_stock(&redis).await);
    assert!(stock.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
    said(&server, &["xsetid", "dwell:{orders}:ready:stock", "18446744073709551615-18446744073709551615"]);
    // Large enough for a separate page.
    let large = order("a").due(Due::After(PATIENCE * 10));
    send(
        &redis,
        Envelope { message: large.message.clone().with(|of| of.body = vec![b' '; 2 << 20].into()), ..large },
    )
    .await
    .unwrap();
    said(&server, &["zadd", DUE, "1", "a@orders"]);
    assert!(stock.receive(1, Duration::ZERO, None).await.unwrap().is_empty());
    let scheduler = redis.scheduler().unwrap();
    let listed = scheduler.pending(Query { limit: usize::MAX, ..Query::default() });
    let clock = dwell_core::Seams::system("test").clock;
    tokio::select! {
        listed = listed => {
            let names: Vec<_> = listed.unwrap().into_iter().map(|pending| pending.id.to_string()).collect();
            assert_eq!(names, ["a@orders/stock"]);
        }
        () = clock.sleep(PATIENCE) => panic!("the list does not end"),
    }
}

#[tokio::test]
async fn an_invalid_count_is_rewritten() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    said(&server, &["hset", "dwell:{orders}:counts", "orders/mail|ready", "many"]);
    send(&redis, order("a")).await.unwrap();
    send(&redis, order("b")).await.unwrap();
    assert_eq!(redis.ledger().unwrap().counts().await.unwrap()[0].count, 1, "counted from the second one on");
    for delivery in receive(&consumer, 2).await {
        settle(&consumer, delivery, Action::ACK).await;
    }
}

#[tokio::test]
async fn a_delivery_without_a_recorded_time_can_be_looked_up_and_settled() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    send(&redis, order("a")).await.unwrap();
    let held = receive(&consumer, 1).await;
    let lua = "for _, e in ipairs(redis.call('HKEYS', KEYS[1])) do \
                 local of = cmsgpack.unpack(redis.call('HGET', KEYS[1], e)) \
                 redis.call('HSET', KEYS[1], e, cmsgpack.pack({ of[1], of[2] })) \
               end";
    said(&server, &["eval", lua, "1", "dwell:{orders}:held:mail"]);
    assert_eq!(redis.ledger().unwrap().get(&"a".into()).await.unwrap().len(), 1);
    for delivery in held {
        settle(&consumer, delivery, Action::ACK).await;
    }
}
