use super::*;
use dwell_core::Unclaimed;

/// Empty file.
struct Empty {
    sqlite: Sqlite,
    clock: VirtualClock,
    file: Temporary,
}

async fn empty() -> Empty {
    let (clock, file) = (VirtualClock::new(), Temporary::new());
    Empty { sqlite: file.open(settings(), &clock).unwrap(), clock, file }
}

impl Empty {
    /// Returns the number of discarded messages without a subscriber.
    fn unclaimed(&self, topic: &str) -> i64 {
        let sql = "SELECT coalesce(sum(discarded), 0) FROM topic WHERE id = (SELECT id FROM place WHERE topic = ?1)";
        self.file.connection().query_row(sql, [topic], |row| row.get(0)).unwrap()
    }
}

fn mail() -> Subscription {
    Subscription::new("orders", "mail")
}

async fn send(sqlite: &Sqlite, to: Address, id: &str) -> Result<Sent> {
    let envelope = Envelope { to, ..order(id) };
    sqlite.producer().await?.send(&[envelope]).await.remove(0)
}

#[tokio::test]
async fn create_is_idempotent_and_includes_channels() {
    let empty = empty().await;
    let sqlite = &empty.sqlite;
    let invalid = Some(Address::subscription("unreadable", "people"));
    let mail = Subscription { invalid, ..mail() };
    for _ in 0..2 {
        sqlite.provision(&[Topic::named("orders")], from_ref(&mail), OnMissing::Create).await.unwrap();
    }
    send(sqlite, Address::topic("orders.dlq"), "a").await.unwrap();
    send(sqlite, Address::subscription("unreadable", "people"), "b").await.unwrap();
    assert_eq!(empty.file.held().ready, 2);
    assert!(sqlite.consumer(Subscription::new("unreadable", "people")).await.is_ok());
}

#[tokio::test]
async fn validate_names_differing_settings_and_changes_nothing() {
    let empty = empty().await;
    let sqlite = &empty.sqlite;
    sqlite.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let others = [
        ("lease", Subscription { lease: SECOND, ..mail() }),
        ("ordered", Subscription { ordered: false, ..mail() }),
        ("dead_letter", Subscription { dead_letter: None, ..mail() }),
        ("invalid", Subscription { invalid: Some(Address::topic("orders.invalid")), ..mail() }),
    ];
    for (setting, other) in others {
        let subscriptions = [Subscription::new("new", "new"), other.clone()];
        let error = sqlite.provision(&[], &subscriptions, OnMissing::Validate).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(text.contains(&format!("{setting}=")) && text.contains("`orders/mail`"), "{text}");
    }
    let keep = [Topic::named("orders").keep()];
    let error = sqlite.provision(&keep, &[], OnMissing::Validate).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("unclaimed="), "{error}");
    assert_eq!(
        kind(send(sqlite, Address::topic("new"), "a").await),
        ErrorKind::NotFound,
        "nothing is created partially"
    );
    let twice = [
        mail(),
        Subscription { lease: SECOND, ..Subscription::new("fresh", "f") },
        Subscription::new("fresh", "f"),
    ];
    assert_eq!(kind(sqlite.provision(&[], &twice, OnMissing::Create).await), ErrorKind::Conflict);
    assert_eq!(kind(send(sqlite, Address::topic("fresh"), "a").await), ErrorKind::NotFound);
    sqlite.provision(&[], &[mail()], OnMissing::Validate).await.unwrap();
}

#[tokio::test]
async fn validate_names_everything_missing_and_creates_nothing() {
    let empty = empty().await;
    let sqlite = &empty.sqlite;
    let stock = Subscription::new("orders", "stock");
    sqlite.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    let other = Subscription::new("invoices", "print");
    let wanted = [mail(), stock.clone(), other];
    let topics = [Topic::named("extra")];
    let error = sqlite.provision(&topics, &wanted, OnMissing::Validate).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for name in ["`extra`", "`orders/stock`", "`invoices`", "`invoices.dlq`", "`invoices/print`"] {
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
    assert!(!error.to_string().contains("orders/mail"), "{error}");
    sqlite.provision(&topics, &wanted, OnMissing::Assume).await.unwrap();
    assert_eq!(kind(sqlite.consumer(stock).await.map(|_| ())), ErrorKind::NotFound);
    assert_eq!(kind(sqlite.consumer(Subscription::new("extra", "x")).await.map(|_| ())), ErrorKind::NotFound);
}

#[tokio::test]
async fn messages_without_subscriber_are_discarded_and_counted() {
    let empty = empty().await;
    let (sqlite, clock) = (&empty.sqlite, &empty.clock);
    sqlite.provision(&[Topic::named("news")], &[], OnMissing::Create).await.unwrap();
    send(sqlite, Address::topic("news"), "a").await.unwrap();
    let later = Envelope { to: Address::topic("news"), ..order("b") }.due(after(SECOND));
    sqlite.producer().await.unwrap().send(&[later]).await.remove(0).unwrap();
    assert_eq!((empty.unclaimed("news"), empty.unclaimed("nothing")), (1, 0));
    clock.advance(SECOND).await;
    let reader = Subscription::new("news", "reader");
    sqlite.provision(&[], from_ref(&reader), OnMissing::Create).await.unwrap();
    assert_eq!(empty.unclaimed("news"), 2, "it was due before the first subscription");
    assert!(seen(&sqlite.consumer(reader).await.unwrap()).await.is_empty());
}

#[tokio::test]
async fn kept_messages_can_be_consumed_under_the_topic_name() {
    let empty = empty().await;
    let sqlite = &empty.sqlite;
    sqlite.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    send(sqlite, Address::topic("jobs"), "a").await.unwrap();
    let consumer = sqlite.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    assert_eq!(seen(&consumer).await, ["a"]);
    send(sqlite, Address::subscription("jobs", "jobs"), "b").await.unwrap();
    assert_eq!(seen(&consumer).await, ["b"]);
    assert_eq!(
        kind(sqlite.consumer(Subscription::new("jobs", "other")).await.map(|_| ())),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn first_subscription_adopts_kept_messages_and_later_ones_get_only_new_ones() {
    let empty = empty().await;
    let (sqlite, clock) = (&empty.sqlite, &empty.clock);
    sqlite.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let kept = sqlite.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["held", "lost", "done", "a", "b"] {
        send(sqlite, Address::topic("jobs"), id).await.unwrap();
    }
    let direct = Envelope { to: Address::subscription("jobs", "jobs"), ..order("later") }.due(after(SECOND));
    sqlite.producer().await.unwrap().send(&[direct]).await.remove(0).unwrap();
    let [held, _lost, done] = kept.receive(3, Duration::ZERO, None).await.unwrap().try_into().unwrap();

    for name in ["first", "second"] {
        sqlite.provision(&[], &[Subscription::new("jobs", name)], OnMissing::Create).await.unwrap();
    }
    let first = sqlite.consumer(Subscription::new("jobs", "first")).await.unwrap();
    let second = sqlite.consumer(Subscription::new("jobs", "second")).await.unwrap();
    send(sqlite, Address::topic("jobs"), "new").await.unwrap();
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
    send(sqlite, Address::subscription("jobs", "jobs"), "by its old name").await.unwrap();
    assert_eq!(seen(&first).await, ["by its old name"]);
    let error = sqlite.consumer(Subscription::new("jobs", "jobs")).await.map(|_| ()).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("`first`"), "{error}");
}

#[tokio::test]
async fn waiting_adopter_wakes_up_when_an_adopted_lease_expires() {
    let broker = Broker::new().await;
    let sqlite = &broker.sqlite;
    sqlite.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let kept = sqlite.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["a", "b"] {
        send(sqlite, Address::topic("jobs"), id).await.unwrap();
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
    let empty = empty().await;
    let (sqlite, clock) = (&empty.sqlite, &empty.clock);
    sqlite.provision(&[Topic::named("jobs").keep()], &[], OnMissing::Create).await.unwrap();
    let before = sqlite.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    for id in ["a1", "a2", "b"] {
        let mut envelope = Envelope { to: Address::topic("jobs"), ..order(id) };
        envelope.message.key = id.starts_with('a').then(|| "a".into());
        sqlite.producer().await.unwrap().send(&[envelope]).await.remove(0).unwrap();
    }
    let held = before.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    let another = sqlite.consumer(Subscription::new("jobs", "jobs")).await.unwrap();
    assert_eq!(seen(&another).await, ["b"], "a2 is put aside");
    let declared = Subscription { ordered: false, ..Subscription::new("jobs", "jobs") };
    sqlite.provision(&[], from_ref(&declared), OnMissing::Create).await.unwrap();
    let consumer = sqlite.consumer(declared).await.unwrap();
    assert_eq!(seen(&consumer).await, ["a2"], "keys are no longer ordered");
    ack(&before, held).await;
    sqlite.provision(&[], &[Subscription::new("jobs", "second")], OnMissing::Create).await.unwrap();
    send(sqlite, Address::topic("jobs"), "new").await.unwrap();
    assert_eq!(seen(&consumer).await, ["new"]);
    clock.advance(LEASE).await;
    assert_eq!(empty.file.held(), Held { waiting: 0, ready: 1, leased: 3 });
}

#[tokio::test]
async fn dead_letters_are_kept_for_a_later_subscription() {
    let empty = empty().await;
    let sqlite = &empty.sqlite;
    sqlite.provision(&[], &[mail()], OnMissing::Create).await.unwrap();
    assert_eq!(Topic::named("orders.dlq").unclaimed_or_default(), Unclaimed::Keep);
    send(sqlite, Address::topic("orders.dlq"), "a").await.unwrap();
    let audit = Subscription::new("orders.dlq", "audit");
    sqlite.provision(&[], from_ref(&audit), OnMissing::Create).await.unwrap();
    assert_eq!(seen(&sqlite.consumer(audit).await.unwrap()).await, ["a"]);
}
