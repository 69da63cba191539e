//! Other programs on the same server: their keys and their messages are in nobody else's way.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{
    Action, Address, Change, Changed, Consumer, Delivery, Due, Envelope, ErrorKind, Message, MessageId, Note,
    Of, OnMissing, Outcome, Query, RecordQuery, Result, Seams, Sent, Settle, Subscription, Transport,
    TransportUrl,
};
use dwell_redis::Redis;
use std::{sync::Arc, time::Duration};

const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default().with("appendonly", "no")).unwrap()
}

async fn connect(url: &str) -> Result<Redis> {
    dwell_redis::connect(&TransportUrl::parse(url)?, Seams::system("test")).await
}

async fn subscribed(redis: &Redis) -> Arc<dyn Consumer> {
    let mail = Subscription::new("orders", "mail");
    redis.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.unwrap();
    redis.consumer(mail).await.unwrap()
}

async fn send(redis: &Redis, envelope: Envelope) -> Result<Sent> {
    redis.producer().await?.send(&[envelope]).await.pop().unwrap()
}

fn order(id: &str) -> Envelope {
    Envelope::new(Address::topic("orders"), Message::new(id, "orders.placed", id.to_owned()))
}

async fn settle(consumer: &Arc<dyn Consumer>, delivery: Delivery, action: Action) {
    let note = Note { outcome: Outcome::Handled, error: None, worker: "test".into(), moved_to: None };
    let unsettled = consumer.settle(vec![Settle { delivery, action, note }]).await;
    assert!(unsettled.is_empty(), "{unsettled:?}");
}

#[tokio::test]
async fn a_key_in_the_way_of_one_topic_is_none_of_the_others() {
    let server = server();
    let redis = connect(&format!("{}?done=1ms", server.url())).await.unwrap();
    let consumer = subscribed(&redis).await;
    let bills = Subscription::new("bills", "mail");
    redis.provision(&[], &[bills], OnMissing::Create).await.unwrap();
    // Their names come before and behind the other's in every list.
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
    assert_eq!(error.kind(), ErrorKind::Conflict, "it may wait where nobody can look: {error}");
    send(&redis, order("b").due(Due::After(late))).await.unwrap();
    let answers = ledger.change(&"b".into(), Of::All, Change::Cancel, "somebody").await.unwrap();
    assert!(matches!(&answers[..], [answer] if answer.changed == Changed::Done), "{answers:?}");

    // All that is due is made ready, however much it is, and what is over is forgotten.
    let many: Vec<_> =
        (0..1000).map(|n| order(&format!("m{n}")).due(Due::After(Duration::from_millis(1)))).collect();
    assert!(redis.producer().await.unwrap().send(&many).await.iter().all(Result::is_ok));
    drop(consumer);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let background = redis.background(Box::pin(async move { _ = stopped.await })).unwrap();
    let background = tokio::spawn(background);
    let clock = Seams::system("test").clock;
    let start = clock.elapsed();
    let said = |arguments: &[&str]| {
        String::from_utf8_lossy(&server.cli(arguments).unwrap().stdout).trim().to_owned()
    };
    while said(&["xlen", "dwell:{orders}:ready:mail"]) != "1000"
        || said(&["exists", "dwell:{orders}:over"]) == "1"
    {
        assert!(clock.elapsed() - start < PATIENCE);
        clock.sleep(Duration::from_millis(20)).await;
    }
    drop(stop);
    background.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_message_of_another_program_whose_id_has_blanks_is_found_and_changed_while_it_waits() {
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
    let left = server.cli(&["exists", "dwell:{orders}:aliases"]).unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&left).trim(), "0", "no name is left behind");
}
