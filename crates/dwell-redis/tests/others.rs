//! Other programs on the same server: conflicting keys affect only their own topic.

mod stage;

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Change, Changed, Due, ErrorKind, MessageId, Of, OnMissing, Query, RecordQuery, Result, Seams,
    Subscription, Transport,
};
use stage::{PATIENCE, connect, order, said, send, settle, subscribed};
use std::time::Duration;

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap()
}

#[tokio::test]
async fn a_conflicting_key_affects_only_its_topic() {
    let server = server();
    let redis = connect(&format!("{}?done=1ms", server.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    let bills = Subscription::new("bills", "mail");
    redis.provision(&[], &[bills], OnMissing::Create).await.unwrap();
    // Their names sort before and after the other's.
    for key in ["dwell:{bills}:aliases", "dwell:{bills}:counts", "dwell:{bills}:buckets"] {
        assert!(server.cli(&["set", key, "mine"]).unwrap().status.success());
    }
    let (ledger, scheduler) = (redis.ledger().unwrap(), redis.scheduler().unwrap());
    let late = PATIENCE * 100;
    send(&redis, order("a").due(Due::After(late))).await.unwrap();
    assert_eq!(ledger.get(&"a".into()).await.unwrap().len(), 1);
    assert_eq!(
        ledger.list(RecordQuery { limit: 10, ..RecordQuery::default() }).await.unwrap().items.len(),
        1
    );
    assert_eq!(ledger.counts().await.unwrap().len(), 1);
    assert_eq!(scheduler.pending(Query { limit: 10, ..Query::default() }).await.unwrap().len(), 1);
    assert_eq!(scheduler.cancel(&"a".into()).await.unwrap(), Changed::Done);
    let error = scheduler.cancel(&"unknown".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "the entry may be in the unreadable topic: {error}");
    send(&redis, order("b").due(Due::After(late))).await.unwrap();
    let answers = ledger.change(&"b".into(), Of::All, Change::Cancel, "somebody").await.unwrap();
    assert!(matches!(&answers[..], [answer] if answer.changed == Changed::Done), "{answers:?}");

    // Due messages are promoted, however many there are, and expired data is removed.
    let many: Vec<_> =
        (0..1000).map(|n| order(&format!("m{n}")).due(Due::After(Duration::from_millis(1)))).collect();
    assert!(redis.producer().await.unwrap().send(&many).await.iter().all(Result::is_ok));
    drop(consumer);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let background = redis.background(Box::pin(async move { _ = stopped.await })).unwrap();
    let background = tokio::spawn(background);
    let clock = Seams::system("test").clock;
    let start = clock.elapsed();
    while said(&server, &["xlen", "dwell:{orders}:ready:mail"]) != "1000"
        || said(&server, &["exists", "dwell:{orders}:over"]) == "1"
    {
        assert!(clock.elapsed() - start < PATIENCE);
        clock.sleep(Duration::from_millis(20)).await;
    }
    drop(stop);
    background.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_pending_foreign_message_with_blanks_in_its_id_can_be_changed() {
    let server = server();
    let redis = connect(&server.url()).await.unwrap();
    let consumer = subscribed(&redis).await;
    for body in ["1", "2", "3"] {
        let entry = ["*", "id", "a % of two", "type", "orders.placed", "body", body, "delay", "900000"];
        server.cli(&[&["xadd", "dwell:{orders}:incoming"], &entry[..]].concat()).unwrap();
    }
    let (ledger, scheduler, id) = (redis.ledger().unwrap(), redis.scheduler().unwrap(), "a % of two".into());
    assert!(consumer.receive(1, Duration::from_millis(1), None).await.unwrap().is_empty());
    let waiting = Query { message: Some(MessageId::from("a % of two")), limit: 10, ..Query::default() };
    assert_eq!(scheduler.pending(waiting).await.unwrap().len(), 3);
    let soon = Due::After(Duration::from_millis(1));
    let answers = ledger.change(&id, Of::All, Change::Reschedule(soon), "somebody").await.unwrap();
    assert_eq!(answers.iter().map(|answer| answer.changed).collect::<Vec<_>>(), [Changed::Done; 3]);
    let mut bodies = vec![];
    while bodies.len() < 3 {
        for delivery in consumer.receive(3, PATIENCE, None).await.unwrap() {
            bodies.push(delivery.message.body.clone());
            settle(&consumer, delivery, Action::ACK).await;
        }
    }
    bodies.sort();
    assert_eq!(bodies, ["1", "2", "3"]);
    assert_eq!(said(&server, &["exists", "dwell:{orders}:aliases"]), "0", "no name is left behind");
}
