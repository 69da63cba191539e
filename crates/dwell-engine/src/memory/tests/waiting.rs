use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[tokio::test]
async fn messages_arrive_on_time_and_never_early() {
    let broker = Broker::new().await;
    let start = broker.now();
    for delay in [MILLI, SECOND, SECOND * 3600, YEAR * 10] {
        let sent = broker.send(order("a").due(after(delay))).await.unwrap();
        assert_eq!(sent.due, Some(broker.now().after(delay)));
        broker.clock.advance(delay - MILLI).await;
        assert!(seen(&broker.mail).await.is_empty(), "{delay:?}");
        broker.clock.advance(MILLI).await;
        let delivery = one(&broker.mail).await;
        assert_eq!(delivery.due, Some(broker.now()));
        ack(&broker.mail, delivery).await;
        ack(&broker.stock, one(&broker.stock).await).await;
    }
    assert!(broker.now() > start.after(YEAR * 10));
}

#[tokio::test]
async fn a_fraction_of_a_millisecond_is_never_early() {
    let broker = Broker::new().await;
    broker.send(order("a").due(after(Duration::from_nanos(1)))).await.unwrap();
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(MILLI).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn zero_and_past_are_immediate_and_maximum_is_accepted() {
    let broker = Broker::new().await;
    let past = Due::At(Timestamp(0));
    for (id, due) in [("a", after(Duration::ZERO)), ("b", past), ("c", Due::At(broker.now()))] {
        assert_eq!(broker.send(order(id).due(due)).await.unwrap().due, None);
    }
    for (id, due) in [("max", after(Duration::MAX)), ("end", Due::At(Timestamp::MAX))] {
        assert_eq!(broker.send(order(id).due(due)).await.unwrap().due, Some(Timestamp::MAX));
    }
    let deliveries = receive(&broker.mail).await;
    assert_eq!(ids(&deliveries), ["a", "b", "c"]);
    assert!(deliveries.iter().all(|delivery| delivery.due == Some(broker.now())));
    broker.clock.advance(YEAR * 1000).await;
    assert_eq!(broker.memory.held().waiting, 2);
}

#[tokio::test]
async fn messages_arrive_in_due_order_despite_long_delays() {
    let broker = Broker::new().await;
    for (id, seconds) in [("long", 3600), ("second", 2), ("first", 1), ("also first", 1)] {
        broker.send(order(id).due(after(SECOND * seconds))).await.unwrap();
    }
    broker.send(order("now")).await.unwrap();
    assert_eq!(seen(&broker.mail).await, ["now"]);
    broker.clock.advance(SECOND * 3).await;
    assert_eq!(seen(&broker.mail).await, ["first", "also first", "second"]);
}

#[tokio::test]
async fn a_pending_publish_reaches_subscriptions_at_its_due_time() {
    let broker = Broker::new().await;
    broker.send(order("early").due(after(SECOND))).await.unwrap();
    broker.send(order("late").due(after(SECOND * 3))).await.unwrap();
    assert_eq!(broker.memory.held().waiting, 2, "one entry per publish");
    // Without a receive, `early` becomes due, but not for the subscription that is added later.
    broker.clock.advance(SECOND * 2).await;
    let new = broker.subscribe(Subscription::new("orders", "new")).await;
    assert!(seen(&new).await.is_empty());
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&new).await, ["late"]);
    assert_eq!(seen(&broker.mail).await, ["early", "late"]);
}

#[tokio::test]
async fn a_pending_message_reaches_its_subscription_only() {
    let broker = Broker::new().await;
    let to = Address::subscription("orders", "mail");
    broker.send(Envelope { to, ..order("a") }.due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    assert!(seen(&broker.stock).await.is_empty());
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn setting_the_clock_back_fires_nothing_early() {
    let broker = Broker::new().await;
    broker.send(order("held")).await.unwrap();
    let held = one(&broker.mail).await;
    broker.send(order("a").due(after(SECOND * 10))).await.unwrap();
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 3600 * 2);
    broker.clock.advance(SECOND * 5).await;
    broker.clock.step_wall(-3_600_000);
    broker.clock.advance(SECOND * 20).await;
    assert!(waiting.is_waiting(), "ten seconds have passed, but the wall clock is behind");
    assert!(broker.mail.extend(vec![held.receipt.lease()], Some(YEAR)).await.unwrap().is_empty());
    broker.clock.advance(SECOND * 3600 - SECOND * 15).await;
    let (at, got) = waiting.got();
    assert_eq!((at, got), (SECOND * 3610, vec!["a".into()]));
}

#[tokio::test]
async fn setting_the_clock_forward_skips_nothing() {
    let broker = Broker::new().await;
    broker.send(order("held")).await.unwrap();
    let held = one(&broker.mail).await;
    for (id, seconds) in [("b", 20), ("a", 10)] {
        broker.send(order(id).due(after(SECOND * seconds))).await.unwrap();
    }
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 20);
    broker.clock.idle().await;
    broker.clock.step_wall(3_600_000);
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (Duration::ZERO, vec!["a".into(), "b".into()]));
    broker.clock.advance(LEASE - MILLI).await;
    ack(&broker.mail, held).await;
}

#[tokio::test]
async fn a_million_due_messages_are_promoted_in_bounded_steps() {
    const COUNT: usize = 1_000_000;
    let settings = MemorySettings { capacity: COUNT, ..MemorySettings::default() };
    let broker = Broker::with(settings).await;
    let (mail, producer) = (Address::subscription("orders", "mail"), broker.memory.producer().await.unwrap());
    let due = after(SECOND);
    for chunk in 0..COUNT / 1000 {
        let envelope =
            |n: usize| Envelope { to: mail.clone(), ..order(&(chunk * 1000 + n).to_string()) }.due(due);
        let batch: Vec<_> = (0..1000).map(envelope).collect();
        assert!(producer.send(&batch).await.iter().all(Result::is_ok));
    }
    broker.clock.advance(SECOND).await;
    let mut next = 0;
    while next < COUNT {
        let before = broker.memory.held();
        let deliveries = broker.mail.receive(250, Duration::ZERO, None).await.unwrap();
        let held = broker.memory.held();
        assert!(before.waiting - held.waiting <= 1000, "{before:?} {held:?}");
        assert!(held.ready <= 5000, "promotion is not faster than delivery: {held:?}");
        for delivery in &deliveries {
            assert_eq!(*delivery.message.id.0, *next.to_string());
            next += 1;
        }
        let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
        assert!(broker.mail.settle(acks).await.is_empty());
    }
    assert!(broker.memory.held().is_empty());
}

#[tokio::test]
async fn a_due_message_behind_many_others_is_found_immediately() {
    let broker = Broker::new().await;
    let to = |name| Address::subscription("orders", name);
    let batch: Vec<_> =
        (0..3000).map(|n| Envelope { to: to("stock"), ..order(&n.to_string()) }.due(after(SECOND))).collect();
    broker.memory.producer().await.unwrap().send(&batch).await;
    broker.send(Envelope { to: to("mail"), ..order("mine") }.due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["mine"]);
}

#[tokio::test]
async fn a_backlog_does_not_block_promotion() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..10_000).map(|n| order(&n.to_string())).collect();
    broker.memory.producer().await.unwrap().send(&batch).await;
    broker.send(order("due").due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    broker.mail.receive(1, Duration::ZERO, None).await.unwrap();
    assert_eq!(broker.memory.held().waiting, 0);
}
