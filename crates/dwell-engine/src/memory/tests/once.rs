use super::*;
use dwell_core::{Attempts, Changed, Entries, OnConflict::*, Query};

fn other(envelope: Envelope) -> Envelope {
    let message = envelope.message.with(|message| message.body = "43".into());
    Envelope { message, ..envelope }
}

async fn waiting(broker: &Broker) -> Vec<(String, Timestamp, String)> {
    let query = Query { limit: 10, ..Query::default() };
    let pending = broker.memory.scheduler().unwrap().pending(query).await.unwrap();
    let body = |message: &Message| String::from_utf8(message.body.to_vec()).unwrap();
    pending.into_iter().map(|p| (p.id.to_string(), p.due, body(&p.envelope.message))).collect()
}

#[tokio::test]
async fn a_repeated_send_is_a_duplicate_or_a_conflict() {
    let broker = Broker::new().await;
    let first = broker.send(order("a").once(Fail)).await.unwrap();
    assert_eq!(first, Sent { due: None, duplicate: false });
    let mut again = order("a").once(Fail).due(after(SECOND));
    again.message.headers.append("x", "y");
    assert_eq!(broker.send(again).await.unwrap(), Sent { due: None, duplicate: true });
    let error = broker.send(other(order("a")).once(Fail)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("`a`"), "{error}");
    ack(&broker.mail, one(&broker.mail).await).await;
    assert!(broker.send(order("a").once(Fail)).await.unwrap().duplicate, "even after it was handled");
    assert!(seen(&broker.mail).await.is_empty());
}

/// Sends the same messages to two brokers, in a batch and with `send_at_once`.
#[tokio::test]
async fn send_at_once_gives_the_results_of_a_batch() {
    let settings = MemorySettings { capacity: 3, max_body: 10, ..MemorySettings::default() };
    let (batches, singly) = (Broker::with(settings).await, Broker::with(settings).await);
    let producer = singly.memory.producer().await.unwrap();
    let at_once = producer.at_once().expect("memory never waits");
    let large = order("large").message.with(|message| message.body = "x".repeat(11).into());
    let to = |topic, message| Envelope::new(Address::topic(topic), message);
    let sends = [
        order("a").once(Fail),
        order("a").once(Fail),
        other(order("a")).once(Fail),
        order("later").once(Fail).due(after(SECOND)),
        other(order("later")).once(Replace).due(after(SECOND * 2)),
        to("orders", large),
        to("nowhere", order("b").message),
        order("b"),
        order("c"),
        order("d"),
    ];
    let answers = |result: Result<Sent>| result.map_err(|error| (error.kind(), error.to_string()));
    let mut failed = vec![];
    for envelope in sends {
        let (one, other) = (batches.send(envelope.clone()).await, at_once.send_at_once(envelope));
        let (one, other) = (answers(one), answers(other));
        assert_eq!(one, other);
        failed.extend(one.err().map(|(kind, _)| kind));
    }
    assert_eq!(failed, [ErrorKind::Conflict, ErrorKind::TooLarge, ErrorKind::NotFound, ErrorKind::Full]);
    for broker in [&batches, &singly] {
        assert_eq!(waiting(broker).await.len(), 1);
        assert_eq!(seen(&broker.mail).await, ["a", "b", "c"]);
    }
    for broker in [&batches, &singly] {
        broker.memory.close().await.unwrap();
    }
    assert_eq!(kind(at_once.send_at_once(order("e"))), ErrorKind::Closed);
}

#[tokio::test]
async fn a_duplicate_returns_the_due_time_of_the_first_send() {
    let broker = Broker::new().await;
    let due = broker.send(order("a").once(Fail).due(after(SECOND * 5))).await.unwrap().due;
    broker.clock.advance(SECOND).await;
    let again = broker.send(order("a").once(Fail).due(after(SECOND * 5))).await.unwrap();
    assert_eq!(again, Sent { due, duplicate: true });
    assert_eq!(kind(broker.send(other(order("a")).once(Fail)).await), ErrorKind::Conflict);
    broker.clock.advance(SECOND * 5).await;
    assert_eq!(
        broker.send(order("a").once(Fail)).await.unwrap(),
        Sent { due, duplicate: true },
        "due, not promoted"
    );
    assert_eq!(seen(&broker.mail).await, ["a"]);
    assert_eq!(broker.send(order("a").once(Fail)).await.unwrap(), Sent { due, duplicate: true }, "fired");
    assert_eq!(kind(broker.send(other(order("a")).once(Fail)).await), ErrorKind::Conflict);
}

#[tokio::test]
async fn ids_are_known_by_topic() {
    let broker = Broker::new().await;
    broker.memory.provision(&[Topic::named("invoices")], &[], OnMissing::Create).await.unwrap();
    broker.send(order("a").once(Fail)).await.unwrap();
    let elsewhere = Envelope { to: Address::topic("invoices"), ..other(order("a")) };
    assert!(!broker.send(elsewhere.once(Fail)).await.unwrap().duplicate);
}

#[tokio::test]
async fn replace_replaces_a_pending_message() {
    let broker = Broker::new().await;
    broker.send(order("a").once(Fail).due(after(SECOND))).await.unwrap();
    let sent = broker.send(other(order("a")).once(Replace).due(after(SECOND * 3))).await.unwrap();
    assert_eq!(sent, Sent { due: Some(broker.now().after(SECOND * 3)), duplicate: false });
    broker.clock.advance(SECOND * 2).await;
    assert!(seen(&broker.mail).await.is_empty());
    broker.send(order("a").once(Replace)).await.unwrap();
    assert_eq!(one(&broker.mail).await.message.body, "42", "replaced by an immediate message");
    broker.clock.advance(SECOND * 9).await;
    assert_eq!(seen(&broker.stock).await, ["a"]);
}

#[tokio::test]
async fn replace_sends_a_new_message_after_firing() {
    let broker = Broker::new().await;
    broker.send(order("a").once(Fail)).await.unwrap();
    assert!(!broker.send(other(order("a")).once(Replace).due(after(SECOND))).await.unwrap().duplicate);
    assert_eq!(seen(&broker.mail).await, ["a"]);
    broker.clock.advance(SECOND).await;
    assert_eq!(one(&broker.mail).await.message.body, "43");
    assert!(
        broker.send(other(order("a")).once(Fail)).await.unwrap().duplicate,
        "compared with the newest content"
    );
}

#[tokio::test]
async fn replacing_works_in_a_full_queue() {
    let broker = Broker::with(MemorySettings { capacity: 1, ..MemorySettings::default() }).await;
    let to = [Address::subscription("orders", "mail"), Address::topic("orders")];
    for to in to {
        let make = |id| Envelope { to: to.clone(), ..order(id) };
        broker.send(make("a").once(Replace).due(after(SECOND))).await.unwrap();
        broker.send(make("a").once(Replace).due(after(SECOND * 2))).await.unwrap();
        assert_eq!(kind(broker.send(make("b").due(after(SECOND))).await), ErrorKind::Full);
        broker.send(make("a").once(Replace)).await.unwrap();
        ack(&broker.mail, one(&broker.mail).await).await;
    }
}

#[tokio::test]
async fn a_copy_replaces_its_pending_self() {
    let broker = Broker::new().await;
    let mut copy = Envelope { copy: true, ..order("a").due(after(SECOND)) };
    copy.message.attempts = Attempts { handled: 1, failed: 0 };
    broker.send(copy.clone()).await.unwrap();
    broker.send(copy.clone().due(after(SECOND * 2))).await.unwrap();
    let due = broker.now().after(SECOND * 2);
    assert_eq!(waiting(&broker).await, [("a@orders#1".into(), due, "42".into())]);
    broker.send(other(copy).due(after(SECOND * 3))).await.unwrap();
    assert_eq!(waiting(&broker).await.len(), 2, "a new send under an id does not replace a copy");
    for _ in 0..2 {
        assert!(!broker.send(order("b")).await.unwrap().duplicate);
    }
    assert_eq!(seen(&broker.mail).await, ["b", "b"]);
}

#[tokio::test]
async fn a_repeated_move_replaces_its_pending_copy() {
    let broker = Broker::new().await;
    let mut copy = Envelope { to: Address::subscription("orders", "mail"), copy: true, ..order("a") };
    copy.message.attempts.handled = 1;
    broker.send(order("a")).await.unwrap();
    broker.send(copy.due(after(SECOND * 9))).await.unwrap();
    let delivery = one(&broker.mail).await;
    defer(&broker.mail, delivery, "mail", after(SECOND)).await;
    assert_eq!(waiting(&broker).await, [("a@orders/mail#1".into(), broker.now().after(SECOND), "42".into())]);
}

/// The replacement came too late, so there are two messages, as with sends without a chosen id.
#[tokio::test]
async fn messages_with_one_id_are_retried_separately() {
    let broker = Broker::new().await;
    let order = || Envelope { to: Address::subscription("orders", "mail"), ..order("a") };
    for envelope in [order(), order(), order().once(Replace), other(order()), other(order())] {
        broker.send(envelope).await.unwrap();
    }
    for _ in 0..3 {
        let deliveries = receive(&broker.mail).await;
        let mut bodies: Vec<_> = deliveries.iter().map(|delivery| delivery.message.body.clone()).collect();
        bodies.sort();
        assert_eq!(bodies, ["42", "42", "42", "43", "43"]);
        for delivery in deliveries {
            defer(&broker.mail, delivery, "mail", after(SECOND)).await;
        }
        let names: std::collections::BTreeSet<_> =
            waiting(&broker).await.into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), 5, "each has its own name: {names:?}");
        broker.clock.advance(SECOND).await;
    }
}

#[tokio::test]
async fn the_oldest_ids_expire_but_not_pending_ones() {
    let broker = Broker::with(MemorySettings { ids: 2, ..MemorySettings::default() }).await;
    broker.send(order("waits").once(Fail).due(after(SECOND))).await.unwrap();
    for id in ["a", "b", "c"] {
        broker.send(order(id).once(Fail)).await.unwrap();
    }
    assert!(!broker.send(order("a").once(Fail)).await.unwrap().duplicate, "expired");
    for id in ["waits", "c", "a"] {
        assert!(broker.send(order(id).once(Fail)).await.unwrap().duplicate, "{id}");
    }
}

#[tokio::test]
async fn a_cancelled_id_can_be_reused() {
    let broker = Broker::new().await;
    let id: Entries = "a".into();
    broker.send(order("a").once(Fail).due(after(SECOND))).await.unwrap();
    assert_eq!(broker.memory.scheduler().unwrap().cancel(&id).await.unwrap(), Changed::Done);
    assert!(!broker.send(other(order("a")).once(Fail).due(after(SECOND))).await.unwrap().duplicate);
}
