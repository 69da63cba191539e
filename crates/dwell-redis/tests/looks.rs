//! Lookups by id: many concurrent lookups cost the server hardly more than one.

mod stage;

use dwell_conformance::servers::redis::{RedisCluster, RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Due, Envelope, ErrorKind, Message, MessageId, OnMissing, Record, State, Subscription,
    Transport,
};
use dwell_redis::Redis;
use futures_util::future::join_all;
use stage::{PATIENCE, connect, order, said, settle, subscribed};

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap()
}

/// Looks up all ids at the same time.
async fn look(redis: &Redis, ids: impl IntoIterator<Item = String>) -> Vec<Vec<Record>> {
    let ledger = redis.ledger().unwrap();
    let looks = ids.into_iter().map(|id| {
        let ledger = ledger.clone();
        async move { ledger.get(&MessageId::from(id)).await.unwrap() }
    });
    join_all(looks).await
}

/// A message in the other topic.
fn bill(id: &str) -> Envelope {
    Envelope::new(Address::topic("bills"), Message::new(id, "bills.sent", id.to_owned()))
}

async fn each_gets_its_own(redis: &Redis) {
    let consumer = subscribed(redis).await;
    redis.provision(&[], &[Subscription::new("bills", "mail")], OnMissing::Create).await.unwrap();
    let producer = redis.producer().await.unwrap();
    let done: Vec<_> = (0..100).map(|n| order(&format!("done-{n}"))).collect();
    assert!(producer.send(&done).await.iter().all(Result::is_ok));
    let mut left = done.len();
    while left > 0 {
        for delivery in consumer.receive(100, PATIENCE, None).await.unwrap() {
            settle(&consumer, delivery, Action::ACK).await;
            left -= 1;
        }
    }
    let later: Vec<_> =
        (0..100).map(|n| bill(&format!("later-{n}")).due(Due::After(PATIENCE * 100))).collect();
    assert!(producer.send(&later).await.iter().all(Result::is_ok));
    let both: Vec<_> = (0..100).map(|n| format!("both-{n}")).flat_map(|id| [order(&id), bill(&id)]).collect();
    assert!(producer.send(&both).await.iter().all(Result::is_ok));

    for kind in ["unknown", "done", "both", "later"] {
        let ids: Vec<_> = (0..130).map(|n| format!("{kind}-{n}")).collect();
        for (n, (id, records)) in ids.iter().zip(look(redis, ids.clone()).await).enumerate() {
            assert!(records.iter().all(|record| *record.message.id.0 == **id), "{id}: {records:?}");
            let mut found: Vec<_> = records.iter().map(|record| (&*record.topic, record.state)).collect();
            found.sort();
            let expected: &[_] = match kind {
                "done" if n < 100 => &[("orders", State::Done)],
                "both" if n < 100 => &[("bills", State::Ready), ("orders", State::Ready)],
                "later" if n < 100 => &[("bills", State::Scheduled)],
                _ => &[],
            };
            assert_eq!(found, expected, "{id}");
        }
    }
}

#[tokio::test]
async fn concurrent_lookups_return_their_own_records() {
    let server = server();
    each_gets_its_own(&connect(&server.url()).await.unwrap()).await;
    each_gets_its_own(&connect(&format!("{}?prefix=other&shards=2", server.url())).await.unwrap()).await;
}

#[tokio::test]
async fn concurrent_lookups_return_their_own_records_in_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    each_gets_its_own(&connect(&cluster.url()).await.unwrap()).await;
}

#[tokio::test]
async fn concurrent_lookups_share_scripts() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let _consumer = subscribed(&redis).await;
    let ids = || (0..300).map(|n| format!("m{n}"));
    let calls = || {
        let stats = said(&server, &["info", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<usize>().unwrap())
    };
    // Waiting consumers also poll now and then.
    let before = calls();
    assert!(look(&redis, ids()).await.iter().all(Vec::is_empty));
    let asked = calls() - before;
    assert!(asked < 30, "{asked} scripts for 300 ids");
}

#[tokio::test]
async fn large_records_are_returned_in_several_answers() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let _consumer = subscribed(&redis).await;
    let large = |n: usize| {
        Envelope::new(
            Address::topic("orders"),
            Message::new(format!("m{n}"), "orders.placed", vec![b'x'; 1 << 20]),
        )
    };
    for n in 0..20 {
        stage::send(&redis, large(n)).await.unwrap();
    }
    let found = look(&redis, (0..21).map(|n| format!("m{n}"))).await;
    let sizes: Vec<_> =
        found.iter().map(|of| of.iter().map(|record| record.message.body.len()).sum::<usize>()).collect();
    assert_eq!(sizes, [vec![1 << 20; 20], vec![0]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_continue_after_the_runtime_of_the_first_caller_ended() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let _consumer = subscribed(&redis).await;
    let (producer, ledger) = (redis.producer().await.unwrap(), redis.ledger().unwrap());
    let first = std::thread::spawn({
        let (producer, ledger) = (producer.clone(), ledger.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                assert!(producer.send(&[order("one")]).await.remove(0).is_ok());
                ledger.get(&MessageId::from("one")).await.unwrap().len()
            })
        }
    });
    assert_eq!(tokio::task::spawn_blocking(|| first.join().unwrap()).await.unwrap(), 1);
    assert!(producer.send(&[order("two")]).await.remove(0).is_ok());
    for id in ["one", "two"] {
        assert_eq!(ledger.get(&MessageId::from(id)).await.unwrap().len(), 1, "{id}");
    }
}

#[tokio::test]
async fn a_missing_topic_is_loaded_once_for_a_batch() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    said(&server, &["config", "resetstat"]);
    let batch: Vec<_> = (0..60).map(|n| order(&n.to_string())).collect();
    let sent = redis.producer().await.unwrap().send(&batch).await;
    assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound)));
    let calls = said(&server, &["info", "commandstats"]);
    // Once to determine the size of its scripts, and once by the only script of the batch.
    assert!(calls.contains("cmdstat_hgetall:calls=2,"), "{calls}");
}
