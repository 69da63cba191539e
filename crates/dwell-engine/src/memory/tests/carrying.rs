use super::*;
use dwell_core::{Headers, wire};

#[tokio::test]
async fn each_subscription_receives_the_message_once() {
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
    assert!(broker.memory.held().is_empty());
}

#[tokio::test]
async fn consumers_share_messages_in_order() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..5).map(|n| order(&n.to_string())).collect();
    let results = broker.memory.producer().await.unwrap().send(&batch).await;
    assert!(results.iter().all(Result::is_ok));
    let another = broker.another().await;
    let first = broker.mail.receive(2, Duration::ZERO, None).await.unwrap();
    let second = another.receive(2, Duration::ZERO, None).await.unwrap();
    assert_eq!((ids(&first), ids(&second)), (vec!["0".into(), "1".into()], vec!["2".into(), "3".into()]));
    assert_eq!(seen(&broker.mail).await, ["4"]);
}

#[tokio::test]
async fn a_message_to_one_subscription_reaches_only_that_one() {
    let broker = Broker::new().await;
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("a") }).await.unwrap();
    assert!(seen(&broker.stock).await.is_empty());
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn items_of_a_batch_fail_separately() {
    let settings = MemorySettings { max_body: 10, ..MemorySettings::default() };
    let broker = Broker::with(settings).await;
    assert_eq!(broker.memory.capabilities().max_body, 10);
    let mut large = order("large");
    large.message.body = vec![0; 11].into();
    let batch = [
        order("a"),
        Envelope { to: Address::topic("invoices"), ..order("nowhere") },
        Envelope { to: Address::subscription("orders", "nobody"), ..order("nobody") },
        large,
        order("b"),
    ];
    let results = broker.memory.producer().await.unwrap().send(&batch).await;
    let error =
        |at: usize| results[at].as_ref().map_err(|error| (error.kind(), error.to_string())).unwrap_err();
    assert!(results[0].is_ok() && results[4].is_ok());
    assert_eq!(error(1).0, ErrorKind::NotFound);
    assert!(error(1).1.contains("`invoices`") && error(1).1.contains("on_missing"), "{}", error(1).1);
    assert_eq!(error(2).0, ErrorKind::NotFound);
    assert!(error(2).1.contains("`nobody`") && error(2).1.contains("`orders`"), "{}", error(2).1);
    assert_eq!(error(3).0, ErrorKind::TooLarge);
    assert!(error(3).1.contains("11 bytes") && error(3).1.contains("is 10:"), "{}", error(3).1);
    assert_eq!(seen(&broker.mail).await, ["a", "b"]);
}

#[tokio::test]
async fn a_large_batch_arrives_in_order() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..2500).map(|n| order(&n.to_string())).collect();
    assert_eq!(broker.memory.producer().await.unwrap().send(&batch).await.len(), 2500);
    let deliveries = broker.mail.receive(5000, Duration::ZERO, None).await.unwrap();
    assert_eq!(ids(&deliveries), (0..2500).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_publish_is_refused_if_one_subscription_is_full() {
    let broker = Broker::with(MemorySettings { capacity: 2, ..MemorySettings::default() }).await;
    let to_mail = |id| Envelope { to: Address::subscription("orders", "mail"), ..order(id) };
    broker.send(to_mail("a")).await.unwrap();
    let held = one(&broker.mail).await;
    broker.send(to_mail("b").due(after(SECOND))).await.unwrap();
    let error = broker.send(order("c")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("`orders/mail`") && error.is_retryable(), "{error}");
    assert_eq!(kind(broker.send(to_mail("d").due(after(SECOND))).await), ErrorKind::Full);
    assert!(seen(&broker.stock).await.is_empty(), "no subscription received it");
    ack(&broker.mail, held).await;
    broker.send(order("c")).await.unwrap();
    assert_eq!((seen(&broker.mail).await, seen(&broker.stock).await), (vec!["c".into()], vec!["c".into()]));
}

#[tokio::test]
async fn pending_publishes_are_limited_per_topic() {
    let broker = Broker::with(MemorySettings { capacity: 2, ..MemorySettings::default() }).await;
    for id in ["a", "b"] {
        broker.send(order(id).due(after(SECOND))).await.unwrap();
    }
    let error = broker.send(order("c").due(after(SECOND))).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("`orders`"), "{error}");
    broker.send(order("c")).await.unwrap();
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["c", "a", "b"], "accepted messages are delivered");
}

#[tokio::test]
async fn copies_and_moves_are_never_full() {
    let broker = Broker::with(MemorySettings { capacity: 1, ..MemorySettings::default() }).await;
    broker.send(order("a")).await.unwrap();
    assert_eq!(kind(broker.send(order("b")).await), ErrorKind::Full);

    let delivery = one(&broker.mail).await;
    let copy = |id: &str| Envelope { copy: true, ..order(id) };
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..copy("b") }).await.unwrap();
    defer(&broker.mail, delivery, "mail", Due::NOW).await;
    assert_eq!(seen(&broker.mail).await, ["b", "a"], "returned to its own full queue");
    broker.send(copy("dead")).await.unwrap();
    assert_eq!(seen(&broker.mail).await, ["dead"]);
    let mut users = order("users").due(after(SECOND));
    wire::set_destination(&mut users.message.headers, &Address::topic("elsewhere"));
    broker.send(users.clone()).await.unwrap();
    users.message.id = "another".into();
    assert_eq!(
        kind(broker.send(users).await),
        ErrorKind::Full,
        "a user's send is refused while the queue is full"
    );
}

/// The clock stands still, so only signals wake receivers. A lost signal hangs this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_clients_lose_nothing_and_keep_key_order() {
    const PRODUCERS: usize = 4;
    const EACH: usize = 2000;
    let broker = Broker::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumers = (0..4).map(|max| {
        let (memory, seen) = (broker.memory.clone(), seen.clone());
        tokio::spawn(async move {
            let consumer = memory.consumer(Subscription::new("orders", "mail")).await.unwrap();
            while let Ok(deliveries) = consumer.receive(max * 3 + 1, Duration::MAX, None).await {
                let ids = ids(&deliveries);
                // Recorded before the ack, while no other consumer has the key.
                seen.lock().unwrap().extend(ids);
                let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
                assert!(consumer.settle(acks).await.is_empty());
                if seen.lock().unwrap().len() == PRODUCERS * EACH {
                    memory.close().await.unwrap();
                }
            }
        })
    });
    let consumers: Vec<_> = consumers.collect();
    let producers = (0..PRODUCERS).map(|producer| {
        let memory = broker.memory.clone();
        tokio::spawn(async move {
            let send = memory.producer().await.unwrap();
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
        assert!(of.is_sorted_by(|a, b| a < b), "each key is in order and without duplicates");
    }
}
