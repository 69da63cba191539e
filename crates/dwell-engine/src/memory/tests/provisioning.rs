use super::*;
use dwell_core::Unclaimed;

async fn broker() -> (Memory, VirtualClock) {
    let clock = VirtualClock::new();
    (Memory::new(Seams::virtual_time(clock.clone(), 1), MemorySettings::default()), clock)
}

fn mail() -> Subscription {
    Subscription::new("orders", "mail")
}

async fn send(memory: &Memory, to: Address, id: &str) -> Result<Sent> {
    let envelope = Envelope { to, ..order(id) };
    memory.producer().await?.send(&[envelope]).await.remove(0)
}

#[tokio::test]
async fn creating_twice_is_idempotent_and_includes_channels() {
    let (memory, _) = broker().await;
    let invalid = Some(Address::subscription("unreadable", "people"));
    let mail = Subscription { invalid, ..mail() };
    for _ in 0..2 {
        memory.provision(&[Topic::named("orders")], from_ref(&mail), OnMissing::Create).await.unwrap();
    }
    send(&memory, Address::topic("orders.dlq"), "a").await.unwrap();
    send(&memory, Address::subscription("unreadable", "people"), "b").await.unwrap();
    assert_eq!(memory.held().ready, 2);
    assert!(memory.consumer(Subscription::new("unreadable", "people")).await.is_ok());
}

#[tokio::test]
async fn validate_refuses_different_settings() {
    let (memory, _) = broker().await;
    memory.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let others = [
        ("lease", Subscription { lease: SECOND, ..mail() }),
        ("ordered", Subscription { ordered: false, ..mail() }),
        ("dead_letter", Subscription { dead_letter: None, ..mail() }),
        ("invalid", Subscription { invalid: Some(Address::topic("orders.invalid")), ..mail() }),
    ];
    for (setting, other) in others {
        let subscriptions = [Subscription::new("new", "new"), other.clone()];
        let error = memory.provision(&[], &subscriptions, OnMissing::Validate).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains(&format!("{setting}=")) && text.contains("`orders/mail`"), "{text}");
    }
    let keep = [Topic::named("orders").keep()];
    let error = memory.provision(&keep, &[], OnMissing::Validate).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("unclaimed="), "{error}");
    assert_eq!(
        kind(send(&memory, Address::topic("new"), "a").await),
        ErrorKind::NotFound,
        "nothing of the request was created"
    );
    let twice = [
        mail(),
        Subscription { lease: SECOND, ..Subscription::new("fresh", "f") },
        Subscription::new("fresh", "f"),
    ];
    assert_eq!(kind(memory.provision(&[], &twice, OnMissing::Create).await), ErrorKind::Conflict);
    assert_eq!(kind(send(&memory, Address::topic("fresh"), "a").await), ErrorKind::NotFound);
    memory.provision(&[], &[mail()], OnMissing::Validate).await.unwrap();
}

#[tokio::test]
async fn validate_names_everything_that_is_missing() {
    let (memory, _) = broker().await;
    let stock = Subscription::new("orders", "stock");
    memory.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let other = Subscription::new("invoices", "print");
    let wanted = [mail(), stock.clone(), other];
    let topics = [Topic::named("extra")];
    let error = memory.provision(&topics, &wanted, OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for name in ["`extra`", "`orders/stock`", "`invoices`", "`invoices.dlq`", "`invoices/print`"] {
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
    assert!(!error.to_string().contains("orders/mail"), "{error}");
    memory.provision(&topics, &wanted, OnMissing::Assume).await.unwrap();
    assert_eq!(kind(memory.consumer(stock).await.map(|_| ())), ErrorKind::NotFound);
    assert_eq!(kind(memory.consumer(Subscription::new("extra", "x")).await.map(|_| ())), ErrorKind::NotFound);
}

#[tokio::test]
async fn messages_without_a_subscription_are_dropped_and_counted() {
    let (memory, clock) = broker().await;
    memory.provision(&[Topic::named("news")], &[], OnMissing::Create).await.unwrap();
    send(&memory, Address::topic("news"), "a").await.unwrap();
    let later = Envelope { to: Address::topic("news"), ..order("b") }.due(after(SECOND));
    memory.producer().await.unwrap().send(&[later]).await.remove(0).unwrap();
    assert_eq!((memory.unclaimed("news"), memory.unclaimed("nothing")), (1, 0));
    clock.advance(SECOND).await;
    let reader = Subscription::new("news", "reader");
    memory.provision(&[], from_ref(&reader), OnMissing::Create).await.unwrap();
    assert_eq!(memory.unclaimed("news"), 2, "due before the first subscription");
    assert!(seen(&memory.consumer(reader).await.unwrap()).await.is_empty());
}

#[tokio::test]
async fn kept_messages_are_consumed_under_the_topics_name() {
    let (memory, _) = broker().await;
    memory.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    send(&memory, Address::topic("jobs"), "a").await.unwrap();
    let consumer = memory.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    assert_eq!(seen(&consumer).await, ["a"]);
    send(&memory, Address::subscription("jobs", "jobs"), "b").await.unwrap();
    assert_eq!(seen(&consumer).await, ["b"]);
    assert_eq!(
        kind(memory.consumer(Subscription::new("jobs", "other")).await.map(|_| ())),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn only_the_first_subscription_adopts_kept_messages() {
    let (memory, clock) = broker().await;
    memory.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let kept = memory.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["held", "lost", "done", "a", "b"] {
        send(&memory, Address::topic("jobs"), id).await.unwrap();
    }
    let direct = Envelope { to: Address::subscription("jobs", "jobs"), ..order("later") }.due(after(SECOND));
    memory.producer().await.unwrap().send(&[direct]).await.remove(0).unwrap();
    let [held, _lost, done] = kept.receive(3, Duration::ZERO, None).await.unwrap().try_into().unwrap();

    for name in ["first", "second"] {
        memory.provision(&[], &[Subscription::new("jobs", name)], OnMissing::Create).await.unwrap();
    }
    let first = memory.consumer(Subscription::new("jobs", "first")).await.unwrap();
    let second = memory.consumer(Subscription::new("jobs", "second")).await.unwrap();
    send(&memory, Address::topic("jobs"), "new").await.unwrap();
    let adopted = receive(&first).await;
    assert_eq!(ids(&adopted), ["a", "b", "new"]);
    assert_eq!(adopted[0].deliveries, Some(1));
    assert_eq!(seen(&second).await, ["new"]);
    assert!(seen(&kept).await.is_empty());

    ack(&kept, done).await;
    release_all(&kept, vec![held]).await;
    assert_eq!(seen(&first).await, ["held"]);
    clock.advance(SECOND).await;
    assert_eq!(seen(&first).await, ["later"]);
    clock.advance(LEASE).await;
    assert!(seen(&first).await.contains(&"lost".into()));
    assert!(seen(&kept).await.is_empty());
    send(&memory, Address::subscription("jobs", "jobs"), "to the old name").await.unwrap();
    assert_eq!(seen(&first).await, ["to the old name"]);
    let error = memory.consumer(Subscription::new("jobs", "jobs")).await.map(|_| ()).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("`first`"), "{error}");
}

#[tokio::test]
async fn an_adopter_wakes_when_an_adopted_lease_expires() {
    let broker = Broker::new().await;
    let memory = &broker.memory;
    memory.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let kept = memory.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["a", "b"] {
        send(memory, Address::topic("jobs"), id).await.unwrap();
    }
    let first = broker.receiving(&kept, 1, LEASE);
    broker.clock.advance(SECOND).await;
    assert_eq!(first.got().1, ["a"]);
    let adopter = broker.subscribe(Subscription::new("jobs", "adopter")).await;
    assert_eq!(seen(&adopter).await, ["b"]);
    let waiting = broker.receiving(&adopter, 1, LEASE * 2);
    broker.clock.advance(LEASE * 2 - SECOND * 10).await;
    assert_eq!(waiting.got(), (LEASE, vec!["a".into()]));
}

#[tokio::test]
async fn declaring_the_kept_subscription_keeps_its_messages() {
    let (memory, clock) = broker().await;
    memory.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let before = memory.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["a1", "a2", "b"] {
        let mut envelope = Envelope { to: Address::topic("jobs"), ..order(id) };
        envelope.message.key = id.starts_with('a').then(|| "a".into());
        memory.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
    }
    let held = before.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    let another = memory.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    assert_eq!(seen(&another).await, ["b"], "a2 is set aside");
    let declared = Subscription { ordered: false, ..Subscription::new("jobs", "jobs") };
    memory.provision(&[], from_ref(&declared), OnMissing::Create).await.unwrap();
    let consumer = memory.consumer(declared).await.unwrap();
    assert_eq!(seen(&consumer).await, ["a2"], "the subscription is unordered now");
    ack(&before, held).await;
    memory.provision(&[], &[Subscription::new("jobs", "second")], OnMissing::Create).await.unwrap();
    send(&memory, Address::topic("jobs"), "new").await.unwrap();
    assert_eq!(seen(&consumer).await, ["new"]);
    clock.advance(LEASE).await;
    assert_eq!(memory.held(), Held { waiting: 0, ready: 1, leased: 3 });
}

#[tokio::test]
async fn dead_letters_are_kept_for_later_consumers() {
    let (memory, _) = broker().await;
    memory.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    assert_eq!(Topic::named("orders.dlq").unclaimed_or_default(), Unclaimed::Keep);
    send(&memory, Address::topic("orders.dlq"), "a").await.unwrap();
    let audit = Subscription::new("orders.dlq", "audit");
    memory.provision(&[], from_ref(&audit), OnMissing::Create).await.unwrap();
    assert_eq!(seen(&memory.consumer(audit).await.unwrap()).await, ["a"]);
}
