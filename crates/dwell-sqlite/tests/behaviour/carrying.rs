use super::*;
use bytes::Bytes;
use dwell_core::{Change, Changed, Headers, Of, RecordQuery, State, wire};

#[tokio::test]
async fn message_arrives_unchanged_once_per_subscription() {
    let broker = Broker::new().await;
    let mut envelope = keyed("a", "customer-7");
    envelope.message.headers = Headers::from_iter([("x", &b"\x00\xff"[..]), ("X", b"2"), ("y", b"3")]);
    envelope.message.sent_at = Some(Timestamp(17));
    let sent = broker.send(envelope.clone()).await.unwrap();
    assert_eq!(sent, Sent { due: None, duplicate: false });
    for consumer in [&broker.mail, &broker.stock] {
        let delivery = one(consumer).await;
        assert_eq!(delivery.message, envelope.message);
        assert_eq!((delivery.deliveries, delivery.due), (Some(1), Some(broker.now())));
        ack(consumer, delivery).await;
        assert!(seen(consumer).await.is_empty());
    }
    assert!(broker.held().is_empty());
}

#[tokio::test]
async fn consumers_share_a_subscription_in_sending_order() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..5).map(|n| order(&n.to_string())).collect();
    let results = broker.sqlite.producer().await.unwrap().send(&batch).await;
    assert!(results.iter().all(Result::is_ok));
    let another = broker.another().await;
    let first = broker.mail.receive(2, Duration::ZERO, None).await.unwrap();
    let second = another.receive(2, Duration::ZERO, None).await.unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec!["0".into(), "1".into()], vec!["2".into(), "3".into()]));
    assert_eq!(seen(&broker.mail).await, ["4"]);
}

#[tokio::test]
async fn message_to_one_subscription_goes_only_there() {
    let broker = Broker::new().await;
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("a") }).await.unwrap();
    assert!(seen(&broker.stock).await.is_empty());
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn batch_items_fail_separately_with_a_remedy() {
    let settings = SqliteSettings { max_body: 10, ..settings() };
    let broker = Broker::with(settings).await;
    assert_eq!(broker.sqlite.capabilities().max_body, 10);
    let mut large = order("large");
    large.message.body = vec![0; 11].into();
    let batch = [
        order("a"),
        Envelope { to: Address::topic("invoices"), ..order("nowhere") },
        Envelope { to: Address::subscription("orders", "nobody"), ..order("nobody") },
        large,
        order("b"),
    ];
    let results = broker.sqlite.producer().await.unwrap().send(&batch).await;
    let error =
        |at: usize| results[at].as_ref().map_err(|error| (error.kind(), error.to_string())).unwrap_err();
    assert!(results[0].is_ok() && results[4].is_ok());
    assert_eq!(error(1).0, ErrorKind::NotFound);
    assert!(error(1).1.contains("`invoices`") && error(1).1.contains("on_missing"), "{}", error(1).1);
    assert_eq!(error(2).0, ErrorKind::NotFound);
    assert!(error(2).1.contains("`nobody`") && error(2).1.contains("`orders`"), "{}", error(2).1);
    assert_eq!(error(3).0, ErrorKind::TooLarge);
    assert!(error(3).1.contains("11 bytes") && error(3).1.contains("at most 10"), "{}", error(3).1);
    assert_eq!(seen(&broker.mail).await, ["a", "b"]);
}

#[tokio::test]
async fn batch_larger_than_one_transaction_arrives_in_order() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..2500).map(|n| order(&n.to_string())).collect();
    assert_eq!(broker.sqlite.producer().await.unwrap().send(&batch).await.len(), 2500);
    let mut seen = Vec::new();
    while seen.len() < 2500 {
        let deliveries = broker.mail.receive(5000, Duration::ZERO, None).await.unwrap();
        assert!(!deliveries.is_empty(), "only {} of them", seen.len());
        seen.extend(ids(&deliveries));
    }
    assert_eq!(seen, (0..2500).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// The clock does not advance, so only the signal of a message wakes a receiver: a lost signal
/// hangs this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_producers_and_consumers_keep_key_order() {
    const PRODUCERS: usize = 4;
    const EACH: usize = 2000;
    let broker = Broker::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumers = (0..4).map(|max| {
        let (sqlite, seen) = (broker.sqlite.clone(), seen.clone());
        tokio::spawn(async move {
            let consumer = sqlite.consumer(Subscription::new("orders", "mail")).await.unwrap();
            while let Ok(deliveries) = consumer.receive(max * 3 + 1, Duration::MAX, None).await {
                let ids = ids(&deliveries);
                // Recorded before it is settled, while no other consumer has its key.
                seen.lock().unwrap().extend(ids);
                let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
                assert!(consumer.settle(acks).await.is_empty());
                if seen.lock().unwrap().len() == PRODUCERS * EACH {
                    sqlite.close().await.unwrap();
                }
            }
        })
    });
    let consumers: Vec<_> = consumers.collect();
    let producers = (0..PRODUCERS).map(|producer| {
        let sqlite = broker.sqlite.clone();
        tokio::spawn(async move {
            let send = sqlite.producer().await.unwrap();
            for n in 0..EACH {
                let envelope = keyed(&format!("{producer}-{n:05}"), &producer.to_string());
                assert!(send.send(&[envelope]).await[0].is_ok());
            }
        })
    });
    for task in producers.collect::<Vec<_>>().into_iter().chain(consumers) {
        task.await.unwrap();
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), PRODUCERS * EACH);
    for producer in 0..PRODUCERS {
        let of = seen.iter().filter(|id| id.starts_with(&format!("{producer}-")));
        assert!(of.is_sorted_by(|a, b| a < b), "each key in order, without duplicates");
    }
}

/// A body that is stored in a separate table follows its message.
#[tokio::test]
async fn large_body_survives_every_change() {
    let broker = Broker::with(SqliteSettings { done: SECOND * 60, ..settings() }).await;
    let ledger = broker.sqlite.ledger().unwrap();
    let body = |byte: u8| Bytes::from([vec![byte; 4990], b"needle".to_vec()].concat());
    let checked = async |consumer: &Arc<dyn Consumer>, expected: &Bytes| {
        let delivery = one(consumer).await;
        assert!(delivery.message.body == *expected);
        broker.file.check();
        delivery
    };
    let dead_letter = async |mut delivery: Delivery| {
        delivery.message.headers.append(wire::ORIGINAL_TOPIC, "orders");
        delivery.message.headers.append(wire::SUBSCRIPTION, "mail");
        let action = Action::Move { to: Address::topic("orders.dlq"), due: Due::NOW };
        assert!(settle(&broker.mail, delivery, action).await.is_empty());
        broker.sqlite.usage().await.unwrap().dead_bytes
    };
    let replay = async |body: Option<Bytes>| {
        let answers = ledger
            .change(&"a".into(), Of::Subscription("mail".into()), Change::Replay(body), "ada")
            .await
            .unwrap();
        assert_eq!(answers[0].changed, Changed::Done);
        broker.sqlite.usage().await.unwrap().dead_bytes
    };
    let mut envelope = order("a").due(after(SECOND));
    envelope.message.body = body(1);
    broker.send(envelope).await.unwrap();
    broker.clock.advance(SECOND).await;
    ack(&broker.stock, checked(&broker.stock, &body(1)).await).await;
    release_all(&broker.mail, vec![checked(&broker.mail, &body(1)).await]).await;
    for due in [Due::NOW, after(SECOND)] {
        defer(&broker.mail, checked(&broker.mail, &body(1)).await, "mail", due).await;
    }
    broker.clock.advance(SECOND).await;

    assert_eq!(dead_letter(checked(&broker.mail, &body(1)).await).await, 4996);
    let dead = RecordQuery {
        states: vec![State::Dead],
        text: Some("needle".into()),
        limit: 10,
        ..RecordQuery::default()
    };
    assert_eq!(ledger.list(dead).await.unwrap().items.len(), 1, "the search reads to the end of the body");
    let small = Bytes::from("small");
    for (edited, after) in
        [(None, body(1)), (Some(body(2)), body(2)), (Some(small.clone()), small), (Some(body(3)), body(3))]
    {
        assert_eq!(replay(edited).await, 0);
        let replayed = checked(&broker.mail, &after).await;
        assert_eq!(dead_letter(replayed).await, after.len() as u64);
    }
    replay(None).await;
    ack(&broker.mail, checked(&broker.mail, &body(3)).await).await;
    let payloads = || -> i64 {
        broker.file.connection().query_row("SELECT count(*) FROM payload", [], |row| row.get(0)).unwrap()
    };
    assert_eq!(payloads(), 2, "payloads are kept with their records");
    broker.clock.advance(SECOND * 61).await;
    for _ in 0..2 {
        assert!(seen(&broker.mail).await.is_empty());
    }
    assert_eq!(payloads(), 0);
    broker.file.check();
}
