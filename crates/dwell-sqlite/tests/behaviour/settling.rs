use super::*;
use dwell_core::LeaseId;

#[tokio::test]
async fn expired_lease_redelivers_and_the_late_worker_is_refused() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    broker.send(order("b")).await.unwrap();
    let late = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    let lease = late.receipt.lease();
    broker.clock.advance(LEASE - MILLI).await;
    assert_eq!(seen(&broker.stock).await, ["a", "b"]);
    let b = one(&broker.mail).await;
    broker.clock.advance(MILLI).await;
    let again = one(&broker.mail).await;
    assert_eq!((again.message.id.to_string(), again.deliveries), ("a".into(), Some(2)));
    assert_ne!(again.receipt.lease().fence, lease.fence);
    for action in [Action::ACK, Action::Release, move_now("orders", "mail")] {
        let receipt = dwell_core::Receipt::new(lease.position, lease.fence);
        let delivery =
            Delivery { message: late.message.clone(), deliveries: None, due: None, problem: None, receipt };
        let unsettled = settle(&broker.mail, delivery, action.clone()).await.remove(0);
        assert_eq!(unsettled.error.kind(), ErrorKind::Stale);
        assert!(unsettled.error.to_string().contains("`orders/mail`"), "{}", unsettled.error);
        assert_eq!(unsettled.settle.action, action, "the settlement is returned unchanged");
    }
    assert_eq!(broker.mail.extend(vec![lease], None).await.unwrap(), [lease]);
    assert_eq!(broker.held(), Held { waiting: 0, ready: 0, leased: 4 });
    ack(&broker.mail, again).await;
    ack(&broker.mail, b).await;
    assert_eq!(broker.held().leased, 2);
}

#[tokio::test]
async fn used_or_unknown_receipt_is_stale() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let delivery = one(&broker.mail).await;
    let LeaseId { position, fence } = delivery.receipt.lease();
    let message = delivery.message.clone();
    ack(&broker.mail, delivery).await;
    for (position, fence) in [(position, fence), (position, fence + 1), (9999, fence), (u64::MAX, 0)] {
        let receipt = dwell_core::Receipt::new(position, fence);
        let delivery =
            Delivery { message: message.clone(), deliveries: None, due: None, problem: None, receipt };
        let unsettled = settle(&broker.mail, delivery, Action::ACK).await;
        assert_eq!(unsettled[0].error.kind(), ErrorKind::Stale);
    }
}

#[tokio::test]
async fn extend_keeps_a_lease_and_returns_lost_ones() {
    let broker = Broker::new().await;
    for id in ["a", "b"] {
        broker.send(order(id)).await.unwrap();
    }
    let [a, b] = receive(&broker.mail).await.try_into().unwrap();
    let leases = [&a, &b].map(|delivery| delivery.receipt.lease());
    for _ in 0..3 {
        broker.clock.advance(LEASE - MILLI).await;
        assert!(broker.mail.extend(vec![leases[0]], None).await.unwrap().is_empty());
        if broker.clock.elapsed() < LEASE {
            assert!(broker.mail.extend(vec![leases[1]], Some(MILLI)).await.unwrap().is_empty());
        }
        assert!(!seen(&broker.mail).await.contains(&"a".into()), "the lease was extended");
    }
    assert_eq!(broker.mail.extend(leases.to_vec(), None).await.unwrap(), [leases[1]]);
    ack(&broker.mail, a).await;
    assert_eq!(settle(&broker.mail, b, Action::ACK).await.len(), 1);
}

#[tokio::test]
async fn lease_time_can_be_set_per_call() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    broker.mail.receive(1, Duration::ZERO, Some(SECOND)).await.unwrap();
    broker.clock.advance(SECOND).await;
    let delivery = one(&broker.mail).await;
    broker.mail.extend(vec![delivery.receipt.lease()], Some(Duration::MAX)).await.unwrap();
    broker.clock.advance(SECOND * 1_000_000_000).await;
    assert!(seen(&broker.mail).await.is_empty());
    ack(&broker.mail, delivery).await;
}

#[tokio::test]
async fn release_restores_order_content_and_delivery_count() {
    let broker = Broker::new().await;
    for id in ["a", "b", "c", "d"] {
        broker.send(order(id)).await.unwrap();
    }
    let mut held = broker.mail.receive(3, Duration::ZERO, None).await.unwrap();
    held.reverse();
    for delivery in &mut held {
        delivery.message.attempts.handled += 1;
        delivery.message.headers.append("x", "y");
    }
    release_all(&broker.mail, held).await;
    let again = receive(&broker.mail).await;
    assert_eq!(ids(&again), ["a", "b", "c", "d"]);
    for delivery in again {
        assert_eq!((delivery.deliveries, delivery.message.attempts.handled), (Some(1), 0));
        assert!(delivery.message.headers.is_empty(), "changes of the handler are dropped");
    }
}

#[tokio::test]
async fn messages_with_expired_leases_return_in_delivery_order() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..20).map(|n| order(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    // Acknowledge some of them, so that positions and order differ.
    let held = broker.mail.receive(10, Duration::ZERO, None).await.unwrap();
    for (n, delivery) in held.into_iter().enumerate() {
        if n % 3 != 0 {
            ack(&broker.mail, delivery).await;
        }
    }
    broker.mail.receive(8, Duration::ZERO, None).await.unwrap();
    broker.clock.advance(LEASE).await;
    let expected = [0, 3, 6, 9].into_iter().chain(10..20).map(|n: u32| n.to_string()).collect::<Vec<_>>();
    assert_eq!(seen(&broker.mail).await, expected);
}

#[tokio::test]
async fn move_keeps_changed_content_and_resets_deliveries() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    receive(&broker.mail).await;
    broker.clock.advance(LEASE).await;
    let mut delivery = one(&broker.mail).await;
    assert_eq!(delivery.deliveries, Some(2));
    delivery.message.attempts.failed = 1;
    delivery.message.headers.append("x", "y");
    let message = delivery.message.clone();
    assert!(settle(&broker.mail, delivery, move_now("orders", "stock")).await.is_empty());
    assert!(seen(&broker.mail).await.is_empty());
    let moved = receive(&broker.stock).await.pop().unwrap();
    assert_eq!((&moved.message, moved.deliveries), (&message, Some(1)));
}

#[tokio::test]
async fn move_to_a_missing_topic_fails_alone_and_changes_nothing() {
    let broker = Broker::new().await;
    for id in ["a", "b"] {
        broker.send(order(id)).await.unwrap();
    }
    let [a, b] = receive(&broker.mail).await.try_into().unwrap();
    let to = Address::topic("nowhere");
    let batch = vec![settlement(a, Action::Move { to, due: after(SECOND) }), settlement(b, Action::ACK)];
    let mut unsettled = broker.mail.settle(batch).await;
    assert_eq!(unsettled.len(), 1);
    let Unsettled { settle, error } = unsettled.remove(0);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(broker.held().leased, 1, "still leased");
    ack(&broker.mail, settle.delivery).await;
    assert_eq!(broker.held().leased, 0);
}

#[tokio::test]
async fn deferred_message_returns_only_to_its_own_subscription() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let (mail, stock) = (one(&broker.mail).await, one(&broker.stock).await);
    defer(&broker.mail, mail, "mail", after(SECOND)).await;
    defer(&broker.stock, stock, "stock", after(SECOND * 2)).await;
    assert_eq!(
        broker.held(),
        Held { waiting: 2, ready: 0, leased: 0 },
        "the two entries have different names"
    );
    broker.clock.advance(SECOND - MILLI).await;
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(MILLI).await;
    let back = one(&broker.mail).await;
    assert_eq!((back.message.attempts.handled, back.due), (1, Some(broker.now())));
    assert!(seen(&broker.stock).await.is_empty());
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.stock).await, ["a"]);
}

#[tokio::test]
async fn closing_a_consumer_releases_its_messages_uncounted() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    for id in ["a", "b", "c"] {
        broker.send(order(id)).await.unwrap();
    }
    let mut held = broker.mail.receive(2, Duration::ZERO, None).await.unwrap();
    let others = broker.receiving(&another, 1, LEASE);
    broker.clock.idle().await;
    assert_eq!(others.got().1, ["c"]);
    let waiting = broker.receiving(&another, 10, LEASE);
    let own = broker.receiving(&broker.mail, 10, LEASE);
    broker.clock.idle().await;
    assert!(waiting.is_waiting() && own.is_waiting());

    broker.mail.close().await.unwrap();
    broker.mail.close().await.unwrap();
    broker.clock.idle().await;
    assert_eq!(own.failed(), ErrorKind::Closed);
    assert_eq!(waiting.got().1, ["a", "b"]);
    let a = held.remove(0);
    assert_eq!(broker.mail.extend(vec![a.receipt.lease()], None).await.unwrap().len(), 1);
    assert_eq!(settle(&broker.mail, a, Action::ACK).await[0].error.kind(), ErrorKind::Stale);
    assert_eq!(kind(broker.mail.receive(1, Duration::ZERO, None).await), ErrorKind::Closed);
    broker.clock.advance(LEASE).await;
    let again = receive(&another).await;
    assert_eq!(again.iter().map(|delivery| delivery.deliveries).collect::<Vec<_>>(), [Some(2); 3]);
}

#[tokio::test]
async fn leases_of_a_dropped_consumer_expire() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let another = broker.another().await;
    drop(one(&another).await);
    drop(another);
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(LEASE).await;
    assert_eq!(one(&broker.mail).await.deliveries, Some(2));
}

fn move_now(topic: &str, subscription: &str) -> Action {
    Action::Move { to: Address::subscription(topic, subscription), due: Due::NOW }
}
