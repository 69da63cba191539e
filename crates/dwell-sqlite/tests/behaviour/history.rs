use super::*;
use dwell_core::{Attempts, Change, Of, RecordQuery, State, wire};

fn kept() -> SqliteSettings {
    SqliteSettings { done: SECOND * 3600, ..settings() }
}

fn to_mail(id: &str) -> Envelope {
    Envelope { to: Address::subscription("orders", "mail"), ..order(id) }
}

/// Returns the history of the only record of a message: seconds since the start, state, origin,
/// error and counts.
async fn past(broker: &Broker, start: Timestamp, id: &str) -> Vec<String> {
    let records = broker.sqlite.ledger().unwrap().get(&id.into()).await.unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    let shown = |text: &Option<dwell_core::Text>| text.as_deref().unwrap_or("-").to_owned();
    let history = records[0].history.iter();
    history
        .map(|step| {
            let Attempts { handled, failed } = step.attempts;
            let at = step.at.since(start).as_secs();
            let by = shown(&step.by);
            let by = by.split_once('#').map_or(by.clone(), |(instance, _)| format!("{instance}#"));
            format!("{at} {} {by} {} {handled}/{failed}", step.state, shown(&step.error))
        })
        .collect()
}

async fn fail(broker: &Broker, action: Action, outcome: Outcome, error: &str, attempts: Attempts) {
    let mut delivery = one(&broker.mail).await;
    delivery.message.attempts = attempts;
    if outcome == Outcome::Exhausted {
        delivery.message.headers.append(wire::ORIGINAL_TOPIC, "orders");
        delivery.message.headers.append(wire::SUBSCRIPTION, "mail");
    }
    let note = Note { outcome, error: Some(error.into()), worker: "w1".into(), moved_to: None };
    assert!(broker.mail.settle(vec![Settle { delivery, action, note }]).await.is_empty());
}

#[tokio::test]
async fn scheduler_changes_are_recorded_with_the_instance_name() {
    let broker = Broker::with(kept()).await;
    let start = broker.now();
    let scheduler = broker.sqlite.scheduler().unwrap();
    broker.send(to_mail("a").due(after(SECOND * 10))).await.unwrap();
    broker.clock.advance(SECOND).await;
    scheduler.reschedule(&"a".into(), after(SECOND * 20)).await.unwrap();
    broker.clock.advance(SECOND).await;
    scheduler.cancel(&"a".into()).await.unwrap();
    let expected = ["0 scheduled - - 0/0", "1 scheduled test - 0/0", "2 cancelled test - 0/0"];
    assert_eq!(past(&broker, start, "a").await, expected);
}

#[tokio::test]
async fn history_has_times_workers_errors_and_origins_of_changes() {
    let broker = Broker::with(kept()).await;
    let start = broker.now();
    broker.send(to_mail("a").due(after(SECOND * 10))).await.unwrap();
    broker.clock.advance(SECOND).await;
    let change = async |change| {
        let ledger = broker.sqlite.ledger().unwrap();
        ledger.change(&"a".into(), Of::All, change, "ada").await.unwrap();
    };
    change(Change::Reschedule(after(SECOND))).await;
    broker.clock.advance(SECOND * 2).await;
    let to = Address::subscription("orders", "mail");
    let once = Attempts { handled: 1, failed: 1 };
    fail(&broker, Action::Move { to, due: after(SECOND) }, Outcome::Failed, "out of paper", once).await;
    broker.clock.advance(SECOND).await;
    let lost = one(&broker.mail).await;
    drop(lost);
    broker.clock.advance(LEASE).await;
    let to = Address::topic("orders.dlq");
    let twice = Attempts { handled: 2, failed: 2 };
    fail(&broker, Action::Move { to, due: Due::NOW }, Outcome::Exhausted, "no ink", twice).await;
    broker.clock.advance(SECOND).await;
    change(Change::Replay(None)).await;
    ack(&broker.mail, one(&broker.mail).await).await;
    let expected = [
        "0 scheduled - - 0/0",
        "1 scheduled ada - 0/0",
        "3 ready - - 0/0",
        "3 processing test# - 0/0",
        "3 retrying w1 out of paper 1/1",
        "4 ready - - 1/1",
        "4 processing test# - 1/1",
        "34 ready - - 1/1",
        "34 processing test# - 1/1",
        "34 dead w1 no ink 2/2",
        "35 ready ada - 0/0",
        "35 processing test# - 0/0",
        "35 done worker - 0/0",
    ];
    assert_eq!(past(&broker, start, "a").await, expected);
}

#[tokio::test]
async fn history_shows_ready_for_a_directly_delivered_message() {
    let broker = Broker::with(kept()).await;
    let (print, start) = (broker.subscribe(Subscription::new("bills", "print")).await, broker.now());
    let to = Address::subscription("bills", "print");
    broker.send(Envelope { to: to.clone(), ..order("a") }.due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND * 2).await;
    let mut delivery = one(&print).await;
    delivery.message.attempts.handled = 1;
    assert!(settle(&print, delivery, Action::Move { to, due: after(SECOND) }).await.is_empty());
    broker.clock.advance(SECOND).await;
    ack(&print, one(&print).await).await;
    let expected = [
        "0 scheduled - - 0/0",
        "2 ready - - 0/0",
        "2 processing test# - 0/0",
        "2 deferred worker - 1/0",
        "3 ready - - 1/0",
        "3 processing test# - 1/0",
        "3 done worker - 1/0",
    ];
    assert_eq!(past(&broker, start, "a").await, expected);
    let written: i64 = broker
        .file
        .connection()
        .query_row("SELECT count(*) FROM history WHERE state = 1", [], |row| row.get(0))
        .unwrap();
    assert_eq!(written, 0, "the state `ready` is derived, not stored");
}

#[tokio::test]
async fn releases_and_cancellations_are_in_the_history() {
    let broker = Broker::with(kept()).await;
    let start = broker.now();
    broker.send(to_mail("a")).await.unwrap();
    release_all(&broker.mail, receive(&broker.mail).await).await;
    defer(&broker.mail, one(&broker.mail).await, "mail", after(SECOND)).await;
    let ledger = broker.sqlite.ledger().unwrap();
    ledger.change(&"a".into(), Of::Subscription("mail".into()), Change::Cancel, "ada").await.unwrap();
    let expected = [
        "0 ready - - 0/0",
        "0 processing test# - 0/0",
        "0 ready worker - 0/0",
        "0 processing test# - 0/0",
        "0 deferred worker - 1/0",
        "0 cancelled ada - 1/0",
    ];
    assert_eq!(past(&broker, start, "a").await, expected);
}

#[tokio::test]
async fn history_of_a_pending_publish_is_copied_to_each_subscription() {
    let broker = Broker::with(kept()).await;
    broker.send(order("a").due(after(SECOND))).await.unwrap();
    broker.clock.advance(SECOND).await;
    ack(&broker.stock, one(&broker.stock).await).await;
    let records = broker.sqlite.ledger().unwrap().get(&"a".into()).await.unwrap();
    let states = |name: &str| {
        let record = records.iter().find(|record| record.subscription.as_deref() == Some(name)).unwrap();
        record.history.iter().map(|step| step.state).collect::<Vec<_>>()
    };
    assert_eq!(states("mail"), [State::Scheduled, State::Ready]);
    assert_eq!(states("stock"), [State::Scheduled, State::Ready, State::Processing, State::Done]);
}

#[tokio::test]
async fn finished_records_expire_with_their_history_and_dead_letters_stay() {
    let broker = Broker::with(SqliteSettings { done: SECOND * 100, ids: SECOND * 100, ..settings() }).await;
    let batch: Vec<_> = (0..1200).map(|n| to_mail(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    for _ in 0..12 {
        for delivery in receive(&broker.mail).await {
            ack(&broker.mail, delivery).await;
        }
    }
    broker.send(to_mail("dead")).await.unwrap();
    let to = Address::topic("orders.dlq");
    fail(&broker, Action::Move { to, due: Due::NOW }, Outcome::Exhausted, "no", Attempts::default()).await;
    let rows = |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        broker.file.connection().query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(rows("message"), 1201);
    assert!(rows("history") >= 1200);

    // Without sends and receives, the background task removes the records.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = Box::pin(async move { _ = stopped.await });
    let background = broker.sqlite.background(stopped).unwrap();
    let ended = tokio::spawn(broker.clock.track(Box::pin(async move { background.await.unwrap() })));
    broker.clock.advance(SECOND * 99).await;
    assert_eq!(rows("message"), 1201, "not expired yet");
    broker.clock.advance(SECOND * 60).await;
    assert_eq!(rows("message"), 1);
    let history: i64 = broker
        .file
        .connection()
        .query_row(
            "SELECT count(*) FROM history WHERE message NOT IN (SELECT number FROM message)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(history, 0);
    broker.clock.advance(SECOND * 3600 * 24 * 365).await;
    let query = RecordQuery { states: vec![State::Dead], limit: 10, ..RecordQuery::default() };
    assert_eq!(broker.sqlite.ledger().unwrap().list(query).await.unwrap().items.len(), 1);
    let usage = broker.sqlite.usage().await.unwrap();
    assert_eq!((usage.dead, usage.dead_bytes), (1, 2), "usage includes dead letters");
    drop(stop);
    broker.clock.idle().await;
    ended.await.unwrap();
}

#[tokio::test]
async fn long_history_keeps_its_first_and_last_steps() {
    const TURNS: usize = 1500;
    let broker = Broker::with(kept()).await;
    broker.send(to_mail("a")).await.unwrap();
    broker.send(to_mail("b")).await.unwrap();
    for _ in 0..TURNS {
        broker.clock.advance(MILLI).await;
        release_all(&broker.mail, receive(&broker.mail).await).await;
    }
    for id in ["a", "b"] {
        let history = broker.sqlite.ledger().unwrap().get(&id.into()).await.unwrap().remove(0).history;
        assert!((1000..2000).contains(&history.len()), "{}", history.len());
        let start = history[0].at;
        let at: Vec<_> = history.iter().map(|step| step.at.since(start).as_millis() as usize).collect();
        assert_eq!(at[..7], [0, 1, 1, 2, 2, 3, 3], "the first steps are kept");
        let last: Vec<_> = (0..1000).map(|step| TURNS - step / 2).collect();
        assert_eq!(at.iter().rev().take(1000).copied().collect::<Vec<_>>(), last, "the last steps are kept");
    }
}
