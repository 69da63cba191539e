use super::*;
use dwell_core::Entries;
use std::{
    future::poll_fn,
    task::{Context, Poll, Waker},
};

#[tokio::test]
async fn receive_waits_no_longer_than_requested() {
    let broker = Broker::new().await;
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 5);
    broker.clock.advance(SECOND * 5 - MILLI).await;
    assert!(waiting.is_waiting());
    broker.clock.advance(MILLI).await;
    assert_eq!(waiting.got(), (SECOND * 5, vec![]));
}

#[tokio::test]
async fn message_wakes_the_receiver_at_once() {
    let broker = Broker::new().await;
    let waiting = broker.receiving(&broker.mail, 10, Duration::MAX);
    broker.clock.advance(SECOND).await;
    broker.send(order("a")).await.unwrap();
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (SECOND, vec!["a".into()]));
}

#[tokio::test]
async fn receiver_wakes_up_at_the_exact_due_time() {
    let broker = Broker::new().await;
    broker.send(order("a").due(after(Duration::from_millis(12_345)))).await.unwrap();
    let (mail, stock) =
        (broker.receiving(&broker.mail, 10, SECOND * 60), broker.receiving(&broker.stock, 10, SECOND * 60));
    broker.clock.advance(SECOND * 60).await;
    let expected = (Duration::from_millis(12_345), vec!["a".to_owned()]);
    assert_eq!((mail.got(), stock.got()), (expected.clone(), expected));
}

#[tokio::test]
async fn earlier_due_time_wakes_a_receiver_waiting_for_a_later_one() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    broker.send(order("late").due(after(SECOND * 100))).await.unwrap();
    let waiting = [(); 2].map(|()| broker.receiving(&broker.mail, 1, SECOND * 1000));
    broker.clock.advance(SECOND).await;
    broker.send(order("early").due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND * 5).await;
    let early: Vec<_> = waiting.iter().filter(|waiting| !waiting.is_waiting()).map(Receiving::got).collect();
    assert_eq!(early, [(SECOND * 2, vec!["early".into()])]);

    let id: Entries = "late".into();
    scheduler.reschedule(&id, after(SECOND)).await.unwrap();
    let third = broker.receiving(&broker.stock, 10, SECOND * 2);
    broker.clock.advance(SECOND * 5).await;
    assert_eq!(third.got(), (SECOND * 6, vec!["early".into()]), "the message was already ready");
    let late: Vec<_> = waiting.iter().filter_map(|waiting| waiting.0.lock().unwrap().take()).collect();
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].0, SECOND * 7);
}

#[tokio::test]
async fn waiting_receiver_wakes_up_when_a_newer_lease_expires() {
    let broker = Broker::new().await;
    let another = broker.another().await;
    let first = broker.receiving(&broker.mail, 10, LEASE * 2);
    broker.clock.idle().await;
    let second = broker.receiving(&another, 10, LEASE * 2);
    broker.clock.advance(SECOND).await;
    broker.send(order("a")).await.unwrap();
    broker.clock.idle().await;
    assert_eq!(first.got(), (SECOND, vec!["a".into()]));
    broker.clock.advance(LEASE * 2 - SECOND * 5).await;
    assert_eq!(second.got(), (LEASE + SECOND, vec!["a".into()]));
}

#[tokio::test]
async fn shortening_a_lease_wakes_a_waiting_receiver() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let held = one(&broker.mail).await;
    let another = broker.another().await;
    let waiting = broker.receiving(&another, 10, LEASE * 2);
    broker.clock.advance(SECOND).await;
    broker.mail.extend(vec![held.receipt.lease()], Some(SECOND)).await.unwrap();
    broker.clock.advance(LEASE).await;
    assert_eq!(waiting.got(), (SECOND * 2, vec!["a".into()]));
}

#[tokio::test]
async fn only_as_many_receivers_wake_up_as_needed() {
    let broker = Broker::new().await;
    // A lease that expires first, so that later leases cause no wake-ups.
    broker.send(order("held")).await.unwrap();
    let _held = one(&broker.mail).await;
    broker.clock.advance(MILLI).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let consumer = broker.another().await;
        waiting.push(broker.receiving(&consumer, 2, SECOND * 60));
    }
    broker.clock.idle().await;
    let batch: Vec<_> = (0..5).map(|n| order(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.clock.idle().await;
    let mut got: Vec<_> =
        waiting.iter().filter(|waiting| !waiting.is_waiting()).map(|w| w.got().1.len()).collect();
    got.sort_unstable();
    assert_eq!(got, [1, 2, 2]);
}

#[tokio::test]
async fn dropped_receive_leases_nothing() {
    let broker = Broker::new().await;
    let mut receive = broker.mail.receive(10, SECOND * 60, None);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(receive.as_mut().poll(&mut cx).is_pending());
    broker.send(order("a")).await.unwrap();
    drop(receive);
    let delivery = one(&broker.mail).await;
    assert_eq!(delivery.deliveries, Some(1));
    // A receive that was never polled leases nothing either.
    release_all(&broker.mail, vec![delivery]).await;
    drop(broker.mail.receive(10, SECOND, None));
    assert_eq!(one(&broker.mail).await.deliveries, Some(1));
}

#[tokio::test]
async fn wake_up_of_a_dropped_receive_passes_to_the_next() {
    let broker = Broker::new().await;
    let consumers = [broker.another().await, broker.another().await];
    let mut dropped = consumers[0].receive(1, SECOND * 60, None);
    poll_fn(|cx| {
        assert!(dropped.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    let waiting = broker.receiving(&consumers[1], 1, SECOND * 60);
    broker.clock.idle().await;
    broker.send(order("a")).await.unwrap();
    drop(dropped);
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (Duration::ZERO, vec!["a".into()]));
}

#[tokio::test]
async fn receive_dropped_within_a_hot_key_passes_its_wake_up_on() {
    let broker = Broker::new().await;
    broker.send(keyed("held", "hot")).await.unwrap();
    let _held = one(&broker.mail).await;
    let consumers = [broker.another().await, broker.another().await];
    let mut dropped = consumers[0].receive(1, SECOND * 60, None);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(dropped.as_mut().poll(&mut cx).is_pending());
    let waiting = broker.receiving(&consumers[1], 1, SECOND * 60);
    broker.clock.idle().await;

    let to = Address::subscription("orders", "mail");
    let hot = (0..1500).map(|n| keyed(&n.to_string(), "hot")).chain([order("cold")]);
    let batch: Vec<_> = hot.map(|envelope| Envelope { to: to.clone(), ..envelope }).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    assert!(dropped.as_mut().poll(&mut cx).is_pending());
    drop(dropped);
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (Duration::ZERO, vec!["cold".into()]));
}

#[tokio::test]
async fn waiting_receive_blocks_neither_settle_nor_extend() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let held = one(&broker.mail).await;
    let waiting = broker.receiving(&broker.mail, 10, SECOND);
    broker.clock.idle().await;
    assert!(broker.mail.extend(vec![held.receipt.lease()], None).await.unwrap().is_empty());
    ack(&broker.mail, held).await;
    assert!(waiting.is_waiting());
}

#[tokio::test]
async fn receive_of_zero_messages_leases_none() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    assert!(broker.mail.receive(0, Duration::ZERO, None).await.unwrap().is_empty());
    assert_eq!(broker.held().ready, 2);
}
