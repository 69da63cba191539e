use super::*;
use dwell_core::{
    Answer, Attempts, BoxFuture, Change, Changed, Count, Cursor, Ledger, MessageId, Of, Page, Record,
    RecordQuery, State, Text, wire,
};

fn ledger(broker: &Broker) -> Arc<dyn Ledger> {
    broker.sqlite.ledger().unwrap()
}

async fn list(broker: &Broker, query: RecordQuery) -> Vec<Record> {
    let query = RecordQuery { limit: 100, ..query };
    let page = ledger(broker).list(query).await.unwrap();
    assert_eq!(page.next, None);
    page.items
}

/// Returns `id@topic/subscription: state` for each record.
async fn states(broker: &Broker, query: RecordQuery) -> Vec<String> {
    let place = |record: &Record| match &record.subscription {
        Some(subscription) => format!("{}/{subscription}", record.topic),
        None => record.topic.to_string(),
    };
    let records = list(broker, query).await;
    records
        .iter()
        .map(|record| format!("{}@{}: {}", record.message.id, place(record), record.state))
        .collect()
}

async fn counts(broker: &Broker) -> Vec<String> {
    let shown = |Count { topic, subscription, state, count }: Count| match subscription {
        Some(subscription) => format!("{topic}/{subscription}: {count} {state}"),
        None => format!("{topic}: {count} {state}"),
    };
    let mut counts: Vec<_> = ledger(broker).counts().await.unwrap().into_iter().map(shown).collect();
    counts.sort();
    counts
}

async fn change(broker: &Broker, id: &str, change: Change) -> Vec<(Option<String>, Changed)> {
    let answers = ledger(broker).change(&id.into(), Of::All, change, "ada").await.unwrap();
    let shown =
        |Answer { subscription, changed }: Answer| (subscription.map(|name| name.to_string()), changed);
    answers.into_iter().map(shown).collect()
}

fn some(name: &str, changed: Changed) -> (Option<String>, Changed) {
    (Some(name.to_owned()), changed)
}

async fn note(
    consumer: &Arc<dyn Consumer>,
    delivery: Delivery,
    action: Action,
    outcome: Outcome,
    error: &str,
) {
    let error = (!error.is_empty()).then(|| error.into());
    let settle =
        Settle { delivery, action, note: Note { outcome, error, worker: "w1".into(), moved_to: None } };
    assert!(consumer.settle(vec![settle]).await.is_empty());
}

/// Moves a delivery of `mail` to the dead letters, as the rule book does.
async fn dead_letter(broker: &Broker, mut delivery: Delivery) {
    let headers = &mut delivery.message.headers;
    headers.append(wire::ORIGINAL_TOPIC, "orders");
    headers.append(wire::SUBSCRIPTION, "mail");
    headers.append(wire::REJECTION_REASON, "delivery_error");
    delivery.message.attempts = Attempts { handled: 3, failed: 3 };
    let to = Action::Move { to: Address::topic("orders.dlq"), due: Due::NOW };
    note(&broker.mail, delivery, to, Outcome::Exhausted, "no route").await;
}

#[tokio::test]
async fn every_state_is_listed_and_counted() {
    let broker = Broker::new().await;
    broker.send(order("scheduled").due(after(SECOND * 100))).await.unwrap();
    let to_mail = |id| Envelope { to: Address::subscription("orders", "mail"), ..order(id) };
    for id in ["deferred", "retrying", "dead", "processing", "ready"] {
        broker.send(to_mail(id)).await.unwrap();
    }
    let [mut deferred, mut retrying, dead, _processing] =
        broker.mail.receive(4, Duration::ZERO, None).await.unwrap().try_into().unwrap();
    let later = |delay| Action::Move { to: Address::subscription("orders", "mail"), due: after(delay) };
    deferred.message.attempts.handled = 1;
    note(&broker.mail, deferred, later(SECOND), Outcome::Deferred, "").await;
    retrying.message.attempts = Attempts { handled: 1, failed: 1 };
    note(&broker.mail, retrying, later(SECOND * 2), Outcome::Failed, "timed out").await;
    dead_letter(&broker, dead).await;

    let expected = [
        "dead@orders/mail: dead",
        "deferred@orders/mail: deferred",
        "processing@orders/mail: processing",
        "ready@orders/mail: ready",
        "retrying@orders/mail: retrying",
        "scheduled@orders: scheduled",
    ];
    assert_eq!(states(&broker, RecordQuery::default()).await, expected);
    let expected = [
        "orders/mail: 1 dead",
        "orders/mail: 1 deferred",
        "orders/mail: 1 processing",
        "orders/mail: 1 ready",
        "orders/mail: 1 retrying",
        "orders: 1 scheduled",
    ];
    assert_eq!(counts(&broker).await, expected);
    broker.clock.advance(SECOND).await;
    let of = |id: &str| RecordQuery { id: Some(id.into()), ..RecordQuery::default() };
    assert_eq!(
        states(&broker, of("deferred")).await,
        ["deferred@orders/mail: ready"],
        "although no consumer has polled"
    );
    assert!(counts(&broker).await.contains(&"orders/mail: 2 ready".to_owned()));
}

#[tokio::test]
async fn record_shows_worker_lease_end_and_last_error() {
    let broker = Broker::new().await;
    let start = broker.now();
    broker.send(order("a")).await.unwrap();
    broker.clock.advance(SECOND).await;
    let mut delivery = one(&broker.mail).await;
    broker.clock.advance(SECOND).await;
    let get = async || ledger(&broker).get(&"a".into()).await.unwrap();
    let [mail, stock] = get().await.try_into().unwrap();
    assert_eq!((mail.state, mail.deliveries, mail.created_at), (State::Processing, 1, start));
    assert_eq!((mail.updated_at, mail.due), (start.after(SECOND), Some(start)));
    assert_eq!(mail.lease_until, Some(start.after(SECOND + LEASE)));
    assert!(mail.worker.unwrap().starts_with("test#"));
    assert_eq!(mail.history.last().unwrap().state, State::Processing);
    assert_eq!(
        (stock.subscription.as_deref(), stock.state, stock.worker),
        (Some("stock"), State::Ready, None)
    );

    delivery.message.attempts = Attempts { handled: 1, failed: 1 };
    let later = Action::Move { to: Address::subscription("orders", "mail"), due: after(SECOND) };
    note(&broker.mail, delivery, later, Outcome::Failed, "no route").await;
    let retrying = get().await.remove(0);
    assert_eq!((retrying.state, retrying.created_at), (State::Retrying, start));
    assert_eq!((retrying.error.as_deref(), retrying.worker.as_deref()), (Some("no route"), Some("w1")));
    assert_eq!((retrying.due, retrying.deliveries), (Some(broker.now().after(SECOND)), 0));
    let found = |error: &str| RecordQuery { error: Some(error.into()), ..RecordQuery::default() };
    assert_eq!(list(&broker, found("route")).await.len(), 1);
    assert!(list(&broker, found("rout3")).await.is_empty());
    assert!(ledger(&broker).get(&"b".into()).await.unwrap().is_empty());
}

#[tokio::test]
async fn every_filter_is_applied() {
    let broker = Broker::new().await;
    let print = broker.subscribe(Subscription::new("invoices", "print")).await;
    broker.send(keyed("a", "k").due(after(SECOND))).await.unwrap();
    let mut b = order("b");
    (b.to, b.message.kind, b.message.body) =
        (Address::topic("invoices"), "invoices.sent".into(), "xneedley".into());
    broker.send(b).await.unwrap();
    let now = broker.now();
    let by = async |query: RecordQuery| {
        list(&broker, query).await.iter().map(|record| record.message.id.to_string()).collect::<Vec<_>>()
    };
    let all = RecordQuery::default;
    assert_eq!(by(all()).await, ["a", "b"]);
    assert_eq!(by(RecordQuery { id: Some("b".into()), ..all() }).await, ["b"]);
    assert_eq!(by(RecordQuery { key: Some("k".into()), ..all() }).await, ["a"]);
    assert_eq!(by(RecordQuery { topic: Some("invoices".into()), ..all() }).await, ["b"]);
    assert_eq!(by(RecordQuery { subscription: Some("print".into()), ..all() }).await, ["b"]);
    assert_eq!(by(RecordQuery { kind: Some("orders.placed".into()), ..all() }).await, ["a"]);
    assert_eq!(by(RecordQuery { states: vec![State::Ready], ..all() }).await, ["b"]);
    for text in ["needle", "b", "invoices.s"] {
        assert!(by(RecordQuery { text: Some(text.into()), ..all() }).await.contains(&"b".into()), "{text}");
    }
    assert_eq!(by(RecordQuery { text: Some("k".into()), ..all() }).await, ["a"]);
    assert!(by(RecordQuery { text: Some("needles".into()), ..all() }).await.is_empty());
    assert_eq!(by(RecordQuery { due_after: Some(now.after(SECOND)), ..all() }).await, ["a"]);
    assert_eq!(by(RecordQuery { due_before: Some(now.after(SECOND)), ..all() }).await, ["b"]);

    // Long bodies are stored in another table.
    let mut c = Envelope { to: Address::topic("invoices"), ..order("c") };
    c.message.body = format!("{}thimble", "x".repeat(5000)).into();
    broker.send(c).await.unwrap();
    assert_eq!(by(RecordQuery { text: Some("xthimble".into()), ..all() }).await, ["c"]);
    assert!(by(RecordQuery { text: Some("xthimbles".into()), ..all() }).await.is_empty());
    assert!(by(RecordQuery { error: Some("".into()), ..all() }).await.is_empty());
    for delivery in receive(&print).await {
        let error = if &*delivery.message.id.0 == "c" { "out of paper" } else { "" };
        note(&print, delivery, Action::Release, Outcome::Released, error).await;
    }
    assert_eq!(
        by(RecordQuery { error: Some("".into()), ..all() }).await,
        ["c"],
        "an empty filter matches any error"
    );
    assert!(by(RecordQuery { error: Some("ink".into()), ..all() }).await.is_empty());
}

#[tokio::test]
async fn matching_record_is_on_exactly_one_page_during_changes() {
    let broker = Broker::new().await;
    // Same id and same time repeatedly: only their numbers distinguish the records.
    for _ in 0..4 {
        broker.send(order("same")).await.unwrap();
    }
    let mut query = RecordQuery { limit: 3, ..RecordQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = ledger(&broker).list(query.clone()).await.unwrap();
        seen.extend(page.items.into_iter().map(|record| record.subscription.unwrap().to_string()));
        broker.send(order("later")).await.unwrap();
        let moved = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
        if &*moved.message.id.0 == "same" {
            defer(&broker.mail, moved, "mail", Due::NOW).await;
        }
        let Some(next) = page.next else { break };
        query = RecordQuery { id: Some("same".into()), after: Some(next), ..query };
    }
    seen.sort();
    assert_eq!(seen, [["mail"; 4], ["stock"; 4]].concat());
    let strange = Cursor { created_at: broker.now(), id: "a".into(), place: "here".into() };
    let query = RecordQuery { after: Some(strange), ..query };
    assert_eq!(kind(ledger(&broker).list(query).await), ErrorKind::Invalid);
}

/// A bounded number of rows is scanned at a time: records at the boundaries are neither missed nor
/// shown twice.
#[tokio::test]
async fn long_search_finds_each_match_once_in_order_during_inserts() {
    let broker = Broker::new().await;
    // With two subscriptions, the twenty thousandth record belongs to the ten thousandth message.
    let matches = [0, 1, 9_998, 9_999, 10_000, 10_001, 19_998, 19_999, 20_000, 20_001, 24_999];
    let message = |n: usize| {
        let body = if matches.contains(&n) { "needle" } else { "hay" };
        Envelope::new(Address::topic("orders"), Message::new(format!("{n:05}"), "orders.placed", body))
    };
    let producer = broker.sqlite.producer().await.unwrap();
    let all: Vec<_> = (0..25_000).map(message).collect();
    for batch in all.chunks(5_000) {
        assert!(producer.send(batch).await.iter().all(Result::is_ok));
    }
    let expected = matches.iter().flat_map(|n| ["mail", "stock"].map(|name| format!("{n:05} {name}")));
    let expected: Vec<_> = expected.collect();
    // One state with many records, and one with few: each is searched in a different way.
    for states in [vec![], vec![State::Ready], vec![State::Ready, State::Processing]] {
        if states.contains(&State::Processing) {
            assert_eq!(broker.mail.receive(3, Duration::ZERO, None).await.unwrap().len(), 3);
        }
        let text = Some("needle".into());
        let mut query = RecordQuery { states, text, limit: 3, ..RecordQuery::default() };
        let mut seen = Vec::new();
        loop {
            let page = ledger(&broker).list(query.clone()).await.unwrap();
            let shown = |record: Record| format!("{} {}", record.message.id, record.subscription.unwrap());
            seen.extend(page.items.into_iter().map(shown));
            // Before the position of the search, and behind it.
            let others = ["00000-later", "99999"].map(|id| order(&format!("{id}-{}", seen.len())));
            assert!(producer.send(&others).await.iter().all(Result::is_ok));
            let Some(next) = page.next else { break };
            query.after = Some(next);
        }
        let mut by_name = seen.clone();
        by_name.sort();
        assert_eq!(by_name, expected, "{:?}", query.states);
        assert!(seen.is_sorted_by_key(|line| line[..5].to_owned()), "{seen:?}");
    }
}

#[tokio::test]
async fn only_pending_messages_can_be_cancelled_or_rescheduled() {
    let broker = Broker::new().await;
    broker.send(order("a").due(after(SECOND))).await.unwrap();
    assert_eq!(change(&broker, "a", Change::Reschedule(after(SECOND * 2))).await, [(None, Changed::Done)]);
    broker.clock.advance(SECOND).await;
    assert!(seen(&broker.mail).await.is_empty());
    assert_eq!(change(&broker, "a", Change::Replay(None)).await, [(None, Changed::TooLate)]);
    assert_eq!(change(&broker, "a", Change::Cancel).await, [(None, Changed::Done)]);
    assert!(change(&broker, "a", Change::Cancel).await.is_empty(), "no record is kept");

    broker.send(order("b")).await.unwrap();
    let delivery = one(&broker.mail).await;
    let late = [some("mail", Changed::TooLate), some("stock", Changed::TooLate)];
    for requested in [Change::Cancel, Change::Reschedule(Due::NOW), Change::Discard] {
        let mut answers = change(&broker, "b", requested).await;
        answers.sort_by_key(|(name, _)| name.clone());
        assert_eq!(answers, late);
    }
    defer(&broker.mail, delivery, "mail", after(SECOND)).await;
    let answers = ledger(&broker)
        .change(&"b".into(), Of::Subscription("mail".into()), Change::Cancel, "ada")
        .await
        .unwrap();
    assert_eq!(answers, [Answer { subscription: Some("mail".into()), changed: Changed::Done }]);
    assert_eq!(seen(&broker.stock).await, ["b"]);
}

#[tokio::test]
async fn replay_returns_to_its_subscription_with_reset_counts_and_no_stamps() {
    let broker = Broker::new().await;
    let mut envelope = order("a");
    envelope.message.headers.append("x", "y");
    broker.send(envelope.clone()).await.unwrap();
    let delivery = one(&broker.mail).await;
    dead_letter(&broker, delivery).await;
    let records = list(&broker, RecordQuery { states: vec![State::Dead], ..RecordQuery::default() }).await;
    assert_eq!((records[0].error.as_deref(), records[0].topic.as_ref()), (Some("no route"), "orders"));
    ack(&broker.stock, one(&broker.stock).await).await;

    assert_eq!(change(&broker, "a", Change::Replay(Some("43".into()))).await, [some("mail", Changed::Done)]);
    let replayed = one(&broker.mail).await;
    let expected = envelope.message.with(|message| message.body = "43".into());
    assert_eq!((&replayed.message, replayed.deliveries), (&expected, Some(1)));
    assert!(seen(&broker.stock).await.is_empty());
    assert_eq!(counts(&broker).await, ["orders/mail: 1 processing"]);
    dead_letter(&broker, replayed).await;
    assert_eq!(change(&broker, "a", Change::Replay(None)).await, [some("mail", Changed::Done)]);
    assert_eq!(one(&broker.mail).await.message.body, "43");
}

#[tokio::test]
async fn replay_without_a_target_leaves_the_dead_letter() {
    let broker = Broker::with(SqliteSettings { max_body: 10, ..settings() }).await;
    let mut gone = order("gone");
    gone.to = Address::topic("orders.dlq");
    gone.message.headers.append(wire::ORIGINAL_TOPIC, "orders");
    gone.message.headers.append(wire::SUBSCRIPTION, "gone");
    broker.send(gone).await.unwrap();
    broker.send(Envelope { to: Address::topic("orders.dlq"), ..order("foreign") }).await.unwrap();
    broker.send(order("a")).await.unwrap();
    let delivery = one(&broker.mail).await;
    dead_letter(&broker, delivery).await;
    let replay = async |id: &str, body: Option<&str>| {
        let body = body.map(|body| body.to_owned().into());
        kind(ledger(&broker).change(&id.into(), Of::All, Change::Replay(body), "ada").await)
    };
    assert_eq!(replay("gone", None).await, ErrorKind::NotFound);
    assert_eq!(replay("foreign", None).await, ErrorKind::Invalid);
    assert_eq!(replay("a", Some("much too long")).await, ErrorKind::TooLarge);
    let dead = ["orders.dlq/orders.dlq: 1 dead", "orders/gone: 1 dead", "orders/mail: 1 dead"];
    assert_eq!(counts(&broker).await[..3], dead);
}

#[tokio::test]
async fn dead_letter_with_several_readers_changes_as_one_record() {
    let broker = Broker::new().await;
    let audit = broker.subscribe(Subscription::new("orders.dlq", "audit")).await;
    broker.subscribe(Subscription::new("orders.dlq", "alarm")).await;
    for id in ["a", "b"] {
        broker.send(order(id)).await.unwrap();
        dead_letter(&broker, one(&broker.mail).await).await;
    }
    assert_eq!(counts(&broker).await, ["orders/mail: 4 dead", "orders/stock: 2 ready"]);
    let mail = async |id: &str, change: Change| {
        let answers =
            ledger(&broker).change(&id.into(), Of::Subscription("mail".into()), change, "ada").await.unwrap();
        answers.into_iter().map(|answer| answer.changed).collect::<Vec<_>>()
    };
    assert_eq!(mail("a", Change::Replay(None)).await, [Changed::Done]);
    assert_eq!(seen(&broker.mail).await, ["a"], "delivered once");
    let held = one(&audit).await;
    assert_eq!(mail("b", Change::Discard).await, [Changed::Done]);
    assert_eq!(mail("b", Change::Discard).await, [Changed::TooLate]);
    let expected = ["orders/mail: 1 dead", "orders/mail: 1 processing", "orders/stock: 2 ready"];
    assert_eq!(counts(&broker).await, expected);
    ack(&audit, held).await;
    assert_eq!(counts(&broker).await, expected[1..]);
}

#[tokio::test]
async fn dead_letter_counts_survive_delay_adoption_and_lost_leases() {
    let broker = Broker::new().await;
    let reader = broker.sqlite.consumer(Subscription::new("orders.dlq", "orders.dlq")).await.unwrap();
    let dlq = |id| Envelope { to: Address::topic("orders.dlq"), ..order(id) };
    for id in ["a", "b"] {
        broker.send(dlq(id)).await.unwrap();
    }
    let direct = Address::subscription("orders.dlq", "orders.dlq");
    broker.send(Envelope { to: direct, ..order("c") }.due(after(SECOND))).await.unwrap();
    broker.send(dlq("d").due(after(SECOND))).await.unwrap();
    let a = reader.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    assert_eq!(counts(&broker).await, ["orders.dlq/orders.dlq: 3 dead", "orders.dlq: 1 dead"]);
    let audit = broker.subscribe(Subscription::new("orders.dlq", "audit")).await;
    assert_eq!(counts(&broker).await, ["orders.dlq/audit: 3 dead", "orders.dlq: 1 dead"]);
    drop(a);
    broker.clock.advance(LEASE).await;
    let deliveries = receive(&audit).await;
    assert_eq!(counts(&broker).await, ["orders.dlq/audit: 4 dead"]);
    for delivery in deliveries {
        ack(&audit, delivery).await;
    }
    assert!(counts(&broker).await.is_empty());
}

#[tokio::test]
async fn finished_records_are_kept_with_their_results() {
    let broker = Broker::with(SqliteSettings { done: LEASE * 1000, ..settings() }).await;
    let to_mail = |id| Envelope { to: Address::subscription("orders", "mail"), ..order(id) };
    for id in ["done", "skipped"] {
        broker.send(to_mail(id)).await.unwrap();
    }
    let [done, skipped] = receive(&broker.mail).await.try_into().unwrap();
    let result = Action::Ack { result: Some("7".into()) };
    note(&broker.mail, done, result, Outcome::Handled, "").await;
    note(&broker.mail, skipped, Action::ACK, Outcome::Rejected, "not wanted").await;
    broker.send(to_mail("cancelled").due(after(SECOND))).await.unwrap();
    assert_eq!(change(&broker, "cancelled", Change::Cancel).await, [some("mail", Changed::Done)]);

    let expected =
        ["cancelled@orders/mail: cancelled", "done@orders/mail: done", "skipped@orders/mail: discarded"];
    assert_eq!(states(&broker, RecordQuery::default()).await, expected);
    let expected = ["orders/mail: 1 cancelled", "orders/mail: 1 discarded", "orders/mail: 1 done"];
    assert_eq!(counts(&broker).await, expected);
    let done = ledger(&broker).get(&"done".into()).await.unwrap().remove(0);
    assert_eq!((done.result, done.worker.as_deref()), (Some("7".into()), Some("w1")));
    let cancelled = ledger(&broker).get(&MessageId::from("cancelled")).await.unwrap().remove(0);
    assert_eq!(cancelled.history.last().unwrap().by.as_deref(), Some("ada"));
    assert_eq!(cancelled.due, Some(broker.now().after(SECOND)));
    assert_eq!(change(&broker, "done", Change::Cancel).await, [some("mail", Changed::TooLate)]);
}

#[tokio::test]
async fn acked_original_of_a_copy_leaves_no_record_and_acked_dead_letter_is_discarded() {
    let broker = Broker::with(SqliteSettings { done: LEASE * 1000, ..settings() }).await;
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("copied") }).await.unwrap();
    note(&broker.mail, one(&broker.mail).await, Action::ACK, Outcome::Failed, "later").await;
    assert!(states(&broker, RecordQuery::default()).await.is_empty());
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("dead") }).await.unwrap();
    dead_letter(&broker, one(&broker.mail).await).await;
    let reader = broker.sqlite.consumer(Subscription::new("orders.dlq", "orders.dlq")).await.unwrap();
    ack(&reader, one(&reader).await).await;
    assert_eq!(states(&broker, RecordQuery::default()).await, ["dead@orders/mail: discarded"]);
}

/// Searches the records for the oldest ready message, as a ledger without a lookup does.
struct Searched(Arc<dyn Ledger>);

impl Ledger for Searched {
    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Vec<Record>>> {
        self.0.get(id)
    }

    fn list(&self, query: RecordQuery) -> BoxFuture<'_, Result<Page<Record>>> {
        self.0.list(query)
    }

    fn counts(&self) -> BoxFuture<'_, Result<Vec<Count>>> {
        self.0.counts()
    }

    fn change<'a>(
        &'a self,
        id: &'a MessageId,
        of: Of,
        change: Change,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Answer>>> {
        self.0.change(id, of, change, by)
    }
}

/// Returns the result of the lookup, and checks that the search finds the same.
async fn oldest(broker: &Broker) -> Vec<(String, Timestamp)> {
    let looked_up = ledger(broker).oldest_ready().await.unwrap();
    assert_eq!(Searched(ledger(broker)).oldest_ready().await.unwrap(), looked_up);
    let name = |subscription: Option<Text>| subscription.map_or(String::new(), |name| name.to_string());
    looked_up.into_iter().map(|of| (format!("{}/{}", of.topic, name(of.subscription)), of.due)).collect()
}

#[tokio::test]
async fn oldest_ready_message_is_the_one_due_first() {
    let broker = Broker::new().await;
    let start = broker.now();
    let to_mail = |envelope: Envelope| Envelope { to: Address::subscription("orders", "mail"), ..envelope };
    assert_eq!(oldest(&broker).await, []);
    for seconds in [50, 20, 40, 10, 30] {
        let envelope = keyed(&format!("after-{seconds}"), "same").due(after(SECOND * seconds));
        broker.send(to_mail(envelope)).await.unwrap();
    }
    assert_eq!(oldest(&broker).await, [], "pending messages are not ready");
    broker.clock.advance(SECOND * 60).await;
    assert_eq!(oldest(&broker).await, [("orders/mail".to_owned(), start.after(SECOND * 10))]);

    broker.send(order("now")).await.unwrap();
    let taken = broker.mail.receive(1, Duration::ZERO, None).await.unwrap();
    let both = [
        ("orders/mail".to_owned(), start.after(SECOND * 20)),
        ("orders/stock".to_owned(), start.after(SECOND * 60)),
    ];
    assert_eq!(oldest(&broker).await, both, "leased messages are not ready");
    // Messages put aside by another consumer, because their key is held, are ready too.
    assert_eq!(seen(&broker.another().await).await, ["now"]);
    assert_eq!(oldest(&broker).await, both);
    dead_letter(&broker, taken.into_iter().next().unwrap()).await;
    assert_eq!(oldest(&broker).await, both, "dead letters are not ready");
}
