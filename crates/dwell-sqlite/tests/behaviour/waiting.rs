use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[tokio::test]
async fn messages_arrive_exactly_when_due() {
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
async fn fraction_of_a_millisecond_is_never_early() {
    let broker = Broker::new().await;
    broker.send(order("a").due(after(Duration::from_nanos(1)))).await.unwrap();
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(MILLI).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn past_due_times_are_immediate_and_the_maximum_is_accepted() {
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
    assert_eq!(broker.held().waiting, 2);
}

#[tokio::test]
async fn messages_arrive_in_due_order_and_a_long_delay_blocks_none() {
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
async fn pending_publish_fans_out_to_subscriptions_at_its_due_time() {
    let broker = Broker::new().await;
    broker.send(order("early").due(after(SECOND))).await.unwrap();
    broker.send(order("late").due(after(SECOND * 3))).await.unwrap();
    assert_eq!(broker.held().waiting, 2, "one entry each");
    // No consumer polls while `early` becomes due, and still a later subscription does not get it.
    broker.clock.advance(SECOND * 2).await;
    let new = broker.subscribe(Subscription::new("orders", "new")).await;
    assert!(seen(&new).await.is_empty());
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&new).await, ["late"]);
    assert_eq!(seen(&broker.mail).await, ["early", "late"]);
}

#[tokio::test]
async fn pending_message_for_one_subscription_goes_only_there() {
    let broker = Broker::new().await;
    let to = Address::subscription("orders", "mail");
    broker.send(Envelope { to, ..order("a") }.due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    assert!(seen(&broker.stock).await.is_empty());
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn wall_clock_set_back_fires_nothing_early_and_keeps_leases() {
    let broker = Broker::new().await;
    broker.send(order("held")).await.unwrap();
    let held = one(&broker.mail).await;
    broker.send(order("a").due(after(SECOND * 10))).await.unwrap();
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 3600 * 2);
    broker.clock.advance(SECOND * 5).await;
    broker.clock.step_wall(-3_600_000);
    broker.clock.advance(SECOND * 20).await;
    assert!(
        waiting.is_waiting(),
        "ten seconds have elapsed, but the wall clock has not reached the due time"
    );
    assert!(broker.mail.extend(vec![held.receipt.lease()], Some(YEAR)).await.unwrap().is_empty());
    broker.clock.advance(SECOND * 3600 - SECOND * 15).await;
    let (at, got) = waiting.got();
    assert_eq!((at, got), (SECOND * 3610, vec!["a".into()]));
}

#[tokio::test]
async fn wall_clock_set_forward_skips_nothing_and_keeps_leases() {
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
async fn messages_due_at_one_instant_become_ready_in_bounded_steps() {
    const COUNT: usize = 20_000;
    let broker = Broker::new().await;
    let (mail, producer) = (Address::subscription("orders", "mail"), broker.sqlite.producer().await.unwrap());
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
        let before = broker.held();
        let deliveries = broker.mail.receive(250, Duration::ZERO, None).await.unwrap();
        let held = broker.held();
        assert!(before.waiting - held.waiting <= 1000, "{before:?} {held:?}");
        assert!(held.ready <= 5000, "messages are promoted only as fast as they are delivered: {held:?}");
        for delivery in &deliveries {
            assert_eq!(*delivery.message.id.0, *next.to_string());
            next += 1;
        }
        let acks = deliveries.into_iter().map(|delivery| settlement(delivery, Action::ACK)).collect();
        assert!(broker.mail.settle(acks).await.is_empty());
    }
    assert!(broker.held().is_empty());
}

#[tokio::test]
async fn due_message_behind_many_of_another_subscription_is_found_at_once() {
    let broker = Broker::new().await;
    let to = |name| Address::subscription("orders", name);
    let batch: Vec<_> =
        (0..3000).map(|n| Envelope { to: to("stock"), ..order(&n.to_string()) }.due(after(SECOND))).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.send(Envelope { to: to("mail"), ..order("mine") }.due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["mine"]);
}

#[tokio::test]
async fn backlog_does_not_block_due_messages() {
    let broker = Broker::new().await;
    let batch: Vec<_> = (0..10_000).map(|n| order(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.send(order("due").due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    broker.mail.receive(1, Duration::ZERO, None).await.unwrap();
    assert_eq!(broker.held().waiting, 0);
}

#[tokio::test]
async fn one_receive_returns_up_to_five_thousand_due_messages_in_order() {
    let broker = Broker::new().await;
    let print = Subscription::new("bills", "print");
    broker.sqlite.provision(&[], std::slice::from_ref(&print), OnMissing::Create).await.unwrap();
    let bill = |n: usize| {
        let message = Message::new(format!("{n:04}"), "bills.made", "{}");
        Envelope::new(Address::topic("bills"), message).due(after(SECOND))
    };
    let batch: Vec<_> = (0..6000).map(bill).collect();
    assert!(broker.sqlite.producer().await.unwrap().send(&batch).await.iter().all(Result::is_ok));
    broker.clock.advance(SECOND).await;
    let consumer = broker.sqlite.consumer(print).await.unwrap();
    let mut seen = Vec::new();
    for expected in [5000, 1000] {
        let deliveries = consumer.receive(10_000, Duration::ZERO, None).await.unwrap();
        assert_eq!(deliveries.len(), expected);
        seen.extend(deliveries.into_iter().map(|delivery| delivery.message.id.to_string()));
    }
    assert!(seen.is_sorted(), "in the order in which they were sent");
}

#[tokio::test]
async fn messages_due_together_arrive_in_due_order_and_settle_independently() {
    let broker = Broker::new().await;
    let bills = broker.subscribe(Subscription::new("bills", "print")).await;
    let to = Address::subscription("bills", "print");
    let bill = |id, due| Envelope { to: to.clone(), ..order(id) }.due(after(due));
    let minute = SECOND * 60;
    let together = [
        bill("later", SECOND * 2),
        bill("a", SECOND),
        bill("b", SECOND),
        bill("in a minute", minute),
        bill("c", SECOND),
        order("of another topic").due(after(SECOND)),
        bill("d", SECOND),
    ];
    for sent in broker.sqlite.producer().await.unwrap().send(&together).await {
        sent.unwrap();
    }
    broker.clock.advance(SECOND * 3).await;
    let mut deliveries = receive(&bills).await;
    assert_eq!(ids(&deliveries), ["a", "b", "c", "d", "later"]);
    let mut leases: Vec<_> = deliveries.iter().map(|delivery| delivery.receipt.lease()).collect();
    leases.sort_by_key(|lease| lease.fence);
    leases.dedup_by_key(|lease| lease.fence);
    assert_eq!(leases.len(), 5, "each delivery has a separate fence");

    let [later, d] = [deliveries.remove(4), deliveries.remove(3)];
    let [c, b, a] = [deliveries.remove(2), deliveries.remove(1), deliveries.remove(0)];
    ack(&bills, b).await;
    let mut deferred = c;
    deferred.message.attempts.handled = 1;
    let action = Action::Move { to: to.clone(), due: after(SECOND) };
    assert!(settle(&bills, deferred, action).await.is_empty());
    release_all(&bills, vec![later, d, a]).await;
    let again = receive(&bills).await;
    assert_eq!(ids(&again), ["a", "d", "later"], "a released message keeps its position");
    broker.clock.advance(SECOND).await;
    let deferred = one(&bills).await;
    assert_eq!((&*deferred.message.id.0, deferred.deliveries), ("c", Some(1)));
    for delivery in again.into_iter().chain([deferred]) {
        ack(&bills, delivery).await;
    }
    // The other topic has two subscriptions, and no consumer has polled there yet.
    assert_eq!(broker.held(), Held { waiting: 2, ready: 0, leased: 0 });
    broker.file.check();
}
