//! Programs that use the same topics with different URLs.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Changed, Consumer, Due, Envelope, ErrorKind, Message, OnConflict, OnMissing, Result,
    Seams, Subscription, Transport, TransportUrl,
};
use stage::{PATIENCE, connect, mail, order, said, send, settle, subscribed};
use std::{sync::Arc, time::Duration};

const TOPIC: &str = "dwell:{orders}:topic";

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap()
}

async fn takes(consumer: &Arc<dyn Consumer>, id: &str) {
    let mut batch = consumer.receive(1, PATIENCE, None).await.unwrap();
    assert_eq!(&*batch[0].message.id.0, id);
    settle(consumer, batch.remove(0), Action::ACK).await;
}

/// Runs a separate promoter until it is stopped.
fn promoter(url: &str) -> (tokio::sync::oneshot::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
    let url = TransportUrl::parse(url).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let stopped = Box::pin(async move { _ = stopped.await });
    let runs = tokio::spawn(async move { dwell_redis::promote(&url, Seams::system("p"), stopped).await });
    (stop, runs)
}

#[tokio::test]
async fn a_program_without_shards_handles_messages_in_buckets() {
    let server = server();
    let plain = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&plain).await;
    assert!(
        consumer.receive(1, Duration::ZERO, None).await.unwrap().is_empty(),
        "the consumer existed before"
    );
    let spread = connect(&format!("{}?shards=2&bucket=1h", server.url())).await.unwrap();
    send(&spread, order("soon").due(Due::After(Duration::from_millis(50)))).await.unwrap();
    assert_eq!(said(&server, &["hlen", "dwell:{orders}:waiting"]), "0", "it is in a bucket");
    takes(&consumer, "soon").await;

    send(&spread, order("late").due(Due::After(PATIENCE * 100))).await.unwrap();
    let records = plain.ledger().unwrap().get(&"late".into()).await.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(plain.scheduler().unwrap().cancel(&"late".into()).await.unwrap(), Changed::Done);
}

#[tokio::test]
async fn promoters_without_shards_promote_messages_in_buckets() {
    let server = server();
    let reader = connect(&format!("{}?promoter=elsewhere", server.url())).await.unwrap();
    let consumer = subscribed(&reader).await;
    let spread = connect(&format!("{}?shards=2&bucket=1h", server.url())).await.unwrap();
    let soon = Due::After(Duration::from_millis(50));
    let (stop, runs) = promoter(&server.url());
    send(&spread, order("a").due(soon)).await.unwrap();
    takes(&consumer, "a").await;
    drop(stop);
    runs.await.unwrap().unwrap();

    let started = connect(&server.url()).await.unwrap();
    let background = tokio::spawn(started.background(Box::pin(std::future::pending())).unwrap());
    send(&spread, order("b").due(soon)).await.unwrap();
    takes(&consumer, "b").await;
    background.abort();
}

#[tokio::test]
async fn the_ledger_setting_is_the_same_for_all_clients_of_a_topic() {
    let server = server();
    let with = connect(&server.url()).await.unwrap();
    subscribed(&with).await;
    let without = connect(&format!("{}?ledger=false", server.url())).await.unwrap();
    for how in [OnMissing::Create, OnMissing::Validate] {
        let error = without.provision(&[], &[mail()], how).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(
            error.to_string().contains("`ledger=true`") && error.to_string().contains("`prefix`"),
            "{error}"
        );
    }
    // Created by a version that did not record the setting: the first client decides.
    for topic in ["orders}", "orders}.dlq", "orders}.invalid"] {
        said(&server, &["hdel", &format!("dwell:{{{topic}:topic"), "ledger"]);
    }
    without.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    assert_eq!(said(&server, &["hmget", TOPIC, "ledger", "layout"]), "0\n2");
    let error = with.provision(&[], &[mail()], OnMissing::Create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[tokio::test]
async fn a_topic_of_an_earlier_version_with_records_keeps_its_ledger() {
    let server = server();
    let with = connect(&server.url()).await.unwrap();
    subscribed(&with).await;
    send(&with, order("a")).await.unwrap();
    for topic in ["orders}", "orders}.dlq", "orders}.invalid"] {
        said(&server, &["hdel", &format!("dwell:{{{topic}:topic"), "ledger"]);
    }
    let without = connect(&format!("{}?ledger=false", server.url())).await.unwrap();
    let error = without.provision(&[], &[mail()], OnMissing::Create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(said(&server, &["hmget", TOPIC, "ledger", "layout"]), "1\n2");
    with.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
}

#[tokio::test]
async fn a_promoter_uses_the_ledger_setting_of_the_topic() {
    for (ledger, other) in [("false", "true"), ("true", "false")] {
        let server = server();
        let url = format!("{}?promoter=elsewhere&ledger={ledger}&done=0s", server.url());
        let redis = connect(&url).await.unwrap();
        let consumer = subscribed(&redis).await;
        let (stop, runs) = promoter(&format!("{}?ledger={other}", server.url()));
        send(&redis, order("a").due(Due::After(Duration::from_millis(50)))).await.unwrap();
        let mut batch = consumer.receive(1, PATIENCE, None).await.unwrap();
        if let Some(books) = redis.ledger() {
            assert_eq!(books.get(&"a".into()).await.unwrap().len(), 1);
        }
        settle(&consumer, batch.remove(0), Action::ACK).await;
        drop(stop);
        runs.await.unwrap().unwrap();
        for key in ["records", "places", "ids", "counts"] {
            assert_eq!(said(&server, &["exists", &format!("dwell:{{orders}}:{key}")]), "0", "{key}");
        }
    }
}

#[tokio::test]
async fn a_topic_of_another_layout_is_refused() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    subscribed(&redis).await;
    for (layout, cause) in [(Some("3"), "later version"), (Some("1"), "drain it"), (None, "drain it")] {
        match layout {
            Some(layout) => said(&server, &["hset", TOPIC, "layout", layout]),
            None => said(&server, &["hdel", TOPIC, "layout"]),
        };
        let another = connect(&server.url()).await.unwrap();
        let refused = [
            another.provision(&[], &[mail()], OnMissing::Create).await.unwrap_err(),
            send(&another, order("a")).await.unwrap_err(),
            another.consumer(mail()).await.map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(error.to_string().contains(cause), "{layout:?}: {error}");
        }
    }
}

#[tokio::test]
async fn the_record_of_a_job_is_kept_as_long_as_its_id() {
    let server = server();
    let url = format!("{}?done=1ms&ids=1h", server.url());
    let redis = connect(&url).await.unwrap();
    let orders = subscribed(&redis).await;
    let sums = Subscription::new("job.sums", "job.sums");
    redis.provision(&[], std::slice::from_ref(&sums), OnMissing::Create).await.unwrap();
    let sums = redis.consumer(sums).await.unwrap();
    let sum = Envelope::new(Address::topic("job.sums"), Message::new("sum", "sums", "[]"));
    let sum = sum.once(OnConflict::Fail);
    assert!(!send(&redis, sum.clone()).await.unwrap().duplicate);
    send(&redis, order("order")).await.unwrap();
    takes(&sums, "sum").await;
    takes(&orders, "order").await;

    let (stop, promoter) = promoter(&url);
    let (ledger, clock) = (redis.ledger().unwrap(), Seams::system("test").clock);
    let start = clock.elapsed();
    while !ledger.get(&"order".into()).await.unwrap().is_empty() {
        assert!(clock.elapsed() - start < PATIENCE * 3, "records do not expire");
        clock.sleep(Duration::from_millis(50)).await;
    }
    assert!(send(&redis, sum).await.unwrap().duplicate);
    assert_eq!(ledger.get(&"sum".into()).await.unwrap().len(), 1, "the job of that id exists");
    drop(stop);
    promoter.await.unwrap().unwrap();
}
