use super::*;
use dwell_core::{Attempts, Changed, Entries, OnConflict::*, Query};

fn other(envelope: Envelope) -> Envelope {
    let message = envelope.message.with(|message| message.body = "43".into());
    Envelope { message, ..envelope }
}

async fn waiting(broker: &Broker) -> Vec<(String, Timestamp, String)> {
    let query = Query { limit: 10, ..Query::default() };
    let pending = broker.sqlite.scheduler().unwrap().pending(query).await.unwrap();
    let body = |message: &Message| String::from_utf8(message.body.to_vec()).unwrap();
    pending.into_iter().map(|p| (p.id.to_string(), p.due, body(&p.envelope.message))).collect()
}

#[tokio::test]
async fn same_content_is_a_duplicate_and_other_content_a_conflict() {
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
    assert!(broker.send(order("a").once(Fail)).await.unwrap().duplicate, "known after it was handled");
    assert!(seen(&broker.mail).await.is_empty());
}

#[tokio::test]
async fn duplicate_of_a_pending_message_returns_the_first_due_time() {
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
async fn ids_are_remembered_per_topic() {
    let broker = Broker::new().await;
    broker.sqlite.provision(&[Topic::named("invoices")], &[], OnMissing::Create).await.unwrap();
    broker.send(order("a").once(Fail)).await.unwrap();
    let elsewhere = Envelope { to: Address::topic("invoices"), ..other(order("a")) };
    assert!(!broker.send(elsewhere.once(Fail)).await.unwrap().duplicate);
}

#[tokio::test]
async fn replaced_pending_message_never_fires() {
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
async fn replace_resends_an_id_that_has_fired() {
    let broker = Broker::new().await;
    broker.send(order("a").once(Fail)).await.unwrap();
    assert!(!broker.send(other(order("a")).once(Replace).due(after(SECOND))).await.unwrap().duplicate);
    assert_eq!(seen(&broker.mail).await, ["a"]);
    broker.clock.advance(SECOND).await;
    assert_eq!(one(&broker.mail).await.message.body, "43");
    assert!(
        broker.send(other(order("a")).once(Fail)).await.unwrap().duplicate,
        "the latest content is known"
    );
}

#[tokio::test]
async fn copy_replaces_only_an_equal_pending_copy() {
    let broker = Broker::new().await;
    let mut copy = Envelope { copy: true, ..order("a").due(after(SECOND)) };
    copy.message.attempts = Attempts { handled: 1, failed: 0 };
    broker.send(copy.clone()).await.unwrap();
    broker.send(copy.clone().due(after(SECOND * 2))).await.unwrap();
    let due = broker.now().after(SECOND * 2);
    assert_eq!(waiting(&broker).await, [("a@orders#1".into(), due, "42".into())]);
    broker.send(other(copy).due(after(SECOND * 3))).await.unwrap();
    assert_eq!(waiting(&broker).await.len(), 2, "a copy with other content does not replace the pending one");
    for _ in 0..2 {
        assert!(!broker.send(order("b")).await.unwrap().duplicate);
    }
    assert_eq!(seen(&broker.mail).await, ["b", "b"]);
}

#[tokio::test]
async fn repeated_move_replaces_its_earlier_copy() {
    let broker = Broker::new().await;
    let mut copy = Envelope { to: Address::subscription("orders", "mail"), copy: true, ..order("a") };
    copy.message.attempts.handled = 1;
    broker.send(order("a")).await.unwrap();
    broker.send(copy.due(after(SECOND * 9))).await.unwrap();
    let delivery = one(&broker.mail).await;
    defer(&broker.mail, delivery, "mail", after(SECOND)).await;
    assert_eq!(waiting(&broker).await, [("a@orders/mail#1".into(), broker.now().after(SECOND), "42".into())]);
}

#[tokio::test]
async fn resending_an_id_during_its_retry_keeps_the_retry() {
    let broker = Broker::new().await;
    let send = async || {
        let to_mail = Envelope { to: Address::subscription("orders", "mail"), ..order("a") };
        broker.send(to_mail.once(Replace).due(after(SECOND))).await.unwrap();
        broker.clock.advance(SECOND).await;
        one(&broker.mail).await
    };
    let first = send().await;
    defer(&broker.mail, first, "mail", after(SECOND * 10)).await;
    let second = send().await;
    defer(&broker.mail, second, "mail", after(SECOND * 10)).await;
    // The run is not counted, so its name is the plain one, which the user has taken meanwhile.
    let third = send().await;
    let to_mail = Envelope { to: Address::subscription("orders", "mail"), ..order("a") };
    broker.send(to_mail.once(Replace).due(after(SECOND * 10))).await.unwrap();
    let again = Action::Move { to: Address::subscription("orders", "mail"), due: after(SECOND * 10) };
    assert!(settle(&broker.mail, third, again).await.is_empty());
    assert_eq!(waiting(&broker).await.len(), 4);
    broker.clock.advance(SECOND * 10).await;
    assert_eq!(seen(&broker.mail).await, ["a"; 4]);
    broker.file.check();
}

#[tokio::test]
async fn last_fired_content_is_known_whichever_message_finishes_first() {
    for (done, first_ends_first) in
        [(Duration::ZERO, true), (Duration::ZERO, false), (SECOND * 600, true), (SECOND * 600, false)]
    {
        let broker = Broker::with(SqliteSettings { done, ..settings() }).await;
        let mail = |envelope: Envelope| Envelope { to: Address::subscription("orders", "mail"), ..envelope };
        let send = async |envelope: Envelope| broker.send(mail(envelope)).await;
        send(order("a").once(Fail).due(after(SECOND))).await.unwrap();
        broker.clock.advance(SECOND).await;
        let first = one(&broker.mail).await;
        let due = send(other(order("a")).once(Replace).due(after(SECOND))).await.unwrap().due;
        broker.clock.advance(SECOND).await;
        let second = one(&broker.mail).await;
        let is_known = async || {
            let again = send(other(order("a")).once(Fail)).await.unwrap();
            assert_eq!(again, Sent { due, duplicate: true }, "{done:?} {first_ends_first}");
            assert_eq!(kind(send(order("a").once(Fail)).await), ErrorKind::Conflict);
        };
        is_known().await;
        let (earlier, later) = if first_ends_first { (first, second) } else { (second, first) };
        for delivery in [earlier, later] {
            ack(&broker.mail, delivery).await;
            is_known().await;
        }
        broker.file.check();
    }
}

#[tokio::test]
async fn fired_id_is_known_again_after_its_replacement_is_cancelled() {
    let broker = Broker::with(SqliteSettings { ids: SECOND * 60, ..settings() }).await;
    let mail = |envelope: Envelope| Envelope { to: Address::subscription("orders", "mail"), ..envelope };
    let due = broker.send(mail(order("a")).once(Fail).due(after(SECOND))).await.unwrap().due;
    broker.clock.advance(SECOND).await;
    let first = one(&broker.mail).await;
    broker.mail.extend(vec![first.receipt.lease()], Some(SECOND * 3600)).await.unwrap();
    broker.send(mail(other(order("a"))).once(Replace).due(after(SECOND))).await.unwrap();
    let cancel = async || broker.sqlite.scheduler().unwrap().cancel(&"a".into()).await.unwrap();
    assert_eq!(cancel().await, Changed::Done);
    let again = async || broker.send(mail(order("a")).once(Fail)).await.unwrap();
    for _ in 0..3 {
        assert_eq!((again().await, cancel().await), (Sent { due, duplicate: true }, Changed::TooLate));
        broker.clock.advance(SECOND * 200).await;
    }
    ack(&broker.mail, first).await;
    broker.clock.advance(SECOND * 59).await;
    assert_eq!((again().await, cancel().await), (Sent { due, duplicate: true }, Changed::TooLate));
    broker.clock.advance(SECOND).await;
    assert!(!again().await.duplicate, "expired a minute after its end");
}

#[tokio::test]
async fn ids_expire_after_their_message_finishes_and_never_before() {
    let broker = Broker::with(SqliteSettings { ids: SECOND * 60, ..settings() }).await;
    let mail = |id: &str| Envelope { to: Address::subscription("orders", "mail"), ..order(id) }.once(Fail);
    broker.send(mail("waits").due(after(SECOND * 3600))).await.unwrap();
    for id in ["held", "done"] {
        broker.send(mail(id)).await.unwrap();
    }
    let [held, done] = receive(&broker.mail).await.try_into().unwrap();
    let year = Some(SECOND * 3600 * 24 * 365);
    broker.mail.extend(vec![held.receipt.lease(), done.receipt.lease()], year).await.unwrap();
    broker.clock.advance(SECOND * 600).await;
    ack(&broker.mail, done).await;
    broker.clock.advance(SECOND * 59).await;
    let again = async |id: &str| broker.send(mail(id)).await.unwrap().duplicate;
    assert!(
        again("waits").await && again("held").await && again("done").await,
        "known for a minute after the end"
    );
    broker.clock.advance(SECOND).await;
    assert!(again("waits").await && again("held").await);
    assert!(!again("done").await, "expired");
    ack(&broker.mail, held).await;
}

#[tokio::test]
async fn cancelled_id_is_free_again() {
    let broker = Broker::new().await;
    let id: Entries = "a".into();
    broker.send(order("a").once(Fail).due(after(SECOND))).await.unwrap();
    assert_eq!(broker.sqlite.scheduler().unwrap().cancel(&id).await.unwrap(), Changed::Done);
    assert!(!broker.send(other(order("a")).once(Fail).due(after(SECOND))).await.unwrap().duplicate);
}

#[tokio::test]
async fn fired_id_is_remembered_independently_of_its_record() {
    for done in [Duration::ZERO, SECOND * 10, SECOND * 600] {
        let broker = Broker::with(SqliteSettings { done, ids: SECOND * 120, ..settings() }).await;
        // Two ways to a consumer: directly when due, and by becoming ready first.
        let alone = broker.subscribe(Subscription::new("bills", "print")).await;
        for (topic, name, consumer) in [("bills", "print", alone), ("orders", "mail", broker.mail.clone())] {
            let id = Entries::from(name);
            let to = Address::subscription(topic, name);
            let send =
                async || broker.send(Envelope { to: to.clone(), ..order(name) }.once(Fail)).await.unwrap();
            let cancel = async || broker.sqlite.scheduler().unwrap().cancel(&id).await.unwrap();
            let first = Envelope { to: to.clone(), ..order(name) }.once(Fail).due(after(SECOND));
            let due = broker.send(first).await.unwrap().due;
            broker.clock.advance(SECOND).await;
            let delivery = one(&consumer).await;
            assert_eq!((cancel().await, send().await), (Changed::TooLate, Sent { due, duplicate: true }));
            ack(&consumer, delivery).await;
            for wait in [61, 58] {
                broker.clock.advance(SECOND * wait).await;
                assert_eq!((cancel().await, send().await), (Changed::TooLate, Sent { due, duplicate: true }));
            }
            let records = broker.sqlite.ledger().unwrap().get(&name.into()).await.unwrap();
            assert_eq!(records.len(), usize::from(done > SECOND * 100), "{done:?}");
            broker.clock.advance(SECOND).await;
            assert_eq!(cancel().await, Changed::NotFound, "{topic}, {done:?}");
            assert!(!send().await.duplicate, "{topic}, {done:?}");
            ack(&consumer, one(&consumer).await).await;
            broker.file.check();
        }
    }
}

#[tokio::test]
async fn fired_id_is_known_while_its_message_is_deferred_or_dead() {
    let broker = Broker::with(SqliteSettings { ids: SECOND * 60, ..settings() }).await;
    broker.sqlite.provision(&[Topic::named("graves").keep()], &[], OnMissing::Create).await.unwrap();
    let mail = || Envelope { to: Address::subscription("orders", "mail"), ..order("a") }.once(Fail);
    let due = broker.send(mail().due(after(SECOND))).await.unwrap().due;
    broker.clock.advance(SECOND).await;
    defer(&broker.mail, one(&broker.mail).await, "mail", after(SECOND * 600)).await;
    for _ in 0..4 {
        assert_eq!(broker.send(mail()).await.unwrap(), Sent { due, duplicate: true });
        broker.clock.advance(SECOND * 200).await;
    }
    let buried = Action::Move { to: Address::topic("graves"), due: Due::NOW };
    assert!(settle(&broker.mail, one(&broker.mail).await, buried).await.is_empty());
    broker.clock.advance(SECOND * 600).await;
    assert_eq!(broker.send(mail()).await.unwrap(), Sent { due, duplicate: true });
    assert_eq!(kind(broker.send(other(mail())).await), ErrorKind::Conflict);
}

#[tokio::test]
async fn immediate_replacement_supersedes_the_fired_content() {
    let broker = Broker::with(SqliteSettings { done: SECOND * 600, ..settings() }).await;
    let mail = |envelope: Envelope| Envelope { to: Address::subscription("orders", "mail"), ..envelope };
    broker.send(mail(order("a")).once(Fail).due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    ack(&broker.mail, one(&broker.mail).await).await;
    broker.send(mail(other(order("a"))).once(Replace)).await.unwrap();
    let again = broker.send(mail(other(order("a"))).once(Fail)).await.unwrap();
    assert_eq!(again, Sent { due: None, duplicate: true });
    assert_eq!(kind(broker.send(mail(order("a")).once(Fail)).await), ErrorKind::Conflict);
}

#[tokio::test]
async fn tidying_terminates_with_many_unfinished_ids_and_no_retention() {
    let broker = Broker::with(SqliteSettings { ids: Duration::ZERO, ..settings() }).await;
    let to_mail =
        |n: usize| Envelope { to: Address::subscription("orders", "mail"), ..order(&n.to_string()) };
    let batch: Vec<_> = (0..1200).map(|n| to_mail(n).once(Fail)).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    let background = broker.sqlite.background(Box::pin(std::future::pending())).unwrap();
    let ended = tokio::spawn(broker.clock.track(Box::pin(async move { background.await.unwrap() })));
    broker.clock.advance(SECOND * 61).await;
    assert!(broker.send(to_mail(0).once(Fail)).await.unwrap().duplicate, "the message is unfinished");
    let first = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    ack(&broker.mail, first).await;
    assert!(
        !broker.send(to_mail(0).once(Fail)).await.unwrap().duplicate,
        "the message has finished, so its id is free"
    );
    ended.abort();
}

#[tokio::test]
async fn id_expires_despite_a_dead_letter_of_another_topic_with_the_same_id() {
    let broker = Broker::with(SqliteSettings { ids: SECOND * 10, ..settings() }).await;
    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    broker.send(order("a").once(Fail)).await.unwrap();
    broker.send(Envelope { to: Address::topic("invoices"), ..order("a") }.once(Fail)).await.unwrap();
    for consumer in [&broker.mail, &broker.stock] {
        ack(consumer, one(consumer).await).await;
    }
    let mut dead = one(&invoices).await;
    dead.message.headers.append("x-original-topic", "invoices");
    dead.message.headers.append("x-dwell-subscription", "mail");
    let to = Action::Move { to: Address::topic("invoices.dlq"), due: Due::NOW };
    assert!(settle(&invoices, dead, to).await.is_empty());
    broker.clock.advance(SECOND * 200).await;
    // Receiving also tidies the file.
    for _ in 0..2 {
        assert!(seen(&broker.mail).await.is_empty());
    }
    let known = "SELECT group_concat(place.topic) FROM known JOIN place ON place.id = known.topic";
    let known: Option<String> = broker.file.connection().query_row(known, [], |row| row.get(0)).unwrap();
    assert_eq!(known.as_deref(), Some("invoices"), "still known in the topic of the dead letter");
    assert!(!broker.send(other(order("a")).once(Fail)).await.unwrap().duplicate);
    let again = Envelope { to: Address::topic("invoices"), ..order("a") };
    assert!(broker.send(again.once(Fail)).await.unwrap().duplicate);
}
