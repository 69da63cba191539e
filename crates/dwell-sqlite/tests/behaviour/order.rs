use super::*;

/// Sends messages given as `id:key`.
async fn send_all(broker: &Broker, messages: &[&str]) {
    for message in messages {
        let (id, key) = message.split_once(':').unwrap();
        broker.send(keyed(id, key)).await.unwrap();
    }
}

async fn take(consumer: &Arc<dyn Consumer>, max: usize) -> Vec<Delivery> {
    consumer.receive(max, Duration::ZERO, None).await.unwrap()
}

#[tokio::test]
async fn key_held_by_one_consumer_is_not_delivered_to_another() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    send_all(&broker, &["a1:a", "a2:a", "b1:b", "a3:a", "b2:b"]).await;
    let a1 = take(&broker.mail, 1).await.remove(0);
    let b = take(&another, 10).await;
    assert_eq!(ids(&b), ["b1", "b2"], "one consumer may hold several of a key");
    assert!(take(&another, 10).await.is_empty());
    ack(&broker.mail, a1).await;
    assert_eq!(ids(&take(&another, 10).await), ["a2", "a3"]);
    assert!(take(&broker.mail, 10).await.is_empty());
}

#[tokio::test]
async fn holder_of_a_key_gets_messages_put_aside_before_later_ones() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    send_all(&broker, &["a1:a", "a2:a"]).await;
    let _a1 = take(&broker.mail, 1).await;
    assert!(take(&another, 10).await.is_empty(), "a2 is put aside");
    send_all(&broker, &["a3:a"]).await;
    assert_eq!(ids(&take(&broker.mail, 1).await), ["a2"]);
    assert!(take(&another, 10).await.is_empty());
}

#[tokio::test]
async fn hot_key_does_not_block_other_keys() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    let hot: Vec<_> = (0..3000).map(|n| keyed(&n.to_string(), "hot")).collect();
    broker.sqlite.producer().await.unwrap().send(&hot).await;
    broker.send(keyed("cold", "cold")).await.unwrap();
    let first = take(&broker.mail, 1).await.remove(0);
    assert_eq!(
        ids(&take(&another, 1).await),
        ["cold"],
        "found behind more messages than one transaction scans"
    );
    ack(&broker.mail, first).await;
    for n in 1..3000 {
        // The key changes its consumer each time.
        let consumer = if n % 2 == 0 { &broker.mail } else { &another };
        let delivery = take(consumer, 1).await.remove(0);
        assert_eq!(delivery.message.id.to_string(), n.to_string());
        ack(consumer, delivery).await;
    }
}

#[tokio::test]
async fn released_and_expired_messages_return_in_key_order() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    send_all(&broker, &["a1:a", "a2:a", "a3:a", "b1:b"]).await;
    let held = take(&broker.mail, 2).await;
    assert_eq!(ids(&take(&another, 10).await), ["b1"]);
    release_all(&broker.mail, held).await;
    assert_eq!(ids(&take(&another, 10).await), ["a1", "a2", "a3"]);
    broker.clock.advance(LEASE).await;
    assert_eq!(seen(&broker.mail).await, ["a1", "a2", "a3", "b1"], "each at its former position");
}

#[tokio::test]
async fn released_message_returns_before_later_ones_of_its_key() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    send_all(&broker, &["a1:a", "a2:a", "a3:a"]).await;
    let [a1, a2] = take(&broker.mail, 2).await.try_into().unwrap();
    release_all(&broker.mail, vec![a1]).await;
    assert!(take(&another, 10).await.is_empty(), "another consumer still holds the key");
    ack(&broker.mail, a2).await;
    assert_eq!(ids(&take(&another, 10).await), ["a1", "a3"]);
}

#[tokio::test]
async fn waiting_consumer_wakes_up_when_a_key_becomes_free() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    send_all(&broker, &["a1:a", "a2:a"]).await;
    let a1 = take(&broker.mail, 1).await.remove(0);
    let waiting = broker.receiving(&another, 10, LEASE * 10);
    broker.clock.advance(SECOND).await;
    assert!(waiting.is_waiting());
    ack(&broker.mail, a1).await;
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (SECOND, vec!["a2".into()]));
}

#[tokio::test]
async fn unordered_subscription_delivers_a_key_to_all_consumers() {
    let broker = Broker::new().await;
    let free = Subscription { ordered: false, ..Subscription::new("orders", "free") };
    let (one, two) = (broker.subscribe(free.clone()).await, broker.subscribe(free).await);
    send_all(&broker, &["a1:a", "a2:a"]).await;
    assert_eq!(
        (ids(&take(&one, 1).await), ids(&take(&two, 1).await)),
        (vec!["a1".into()], vec!["a2".into()])
    );
}

#[tokio::test]
async fn messages_without_a_key_are_not_blocked() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    for id in ["1", "2"] {
        broker.send(order(id)).await.unwrap();
    }
    assert_eq!(ids(&take(&broker.mail, 1).await), ["1"]);
    assert_eq!(ids(&take(&another, 1).await), ["2"]);
}
