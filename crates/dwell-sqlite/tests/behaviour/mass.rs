//! Tests with very many messages.

use super::*;
use dwell_core::{Change, RecordQuery, Seams, State};
use dwell_engine::{Engine, Tally};

const MILLION: usize = 1_000_000;

/// Inserts a million pending messages for `mail`, all due at the same instant, in the form that the
/// transport writes.
async fn fill(broker: &Broker) {
    let to = Address::subscription("orders", "mail");
    broker.send(Envelope { to, ..order("m-0") }.due(after(SECOND))).await.unwrap();
    let sql = format!(
        "BEGIN;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MILLION} - 1)
         INSERT INTO message SELECT {MILLION} + i, topic, place, home, phase, state, born, {MILLION} + i, rank, 'm-' || i || '@orders/mail',
             destination, due, created_at, updated_at, lease_until, holder, deliveries, changed_by, worker, error,
             error_step, result, once, content, fired, problem, 'm-' || i, type, key, content_type, sent_at, handled, failed,
             headers, body, i >> 17, NULL, NULL FROM n, message WHERE id = 'm-0';
         INSERT INTO waiting SELECT topic, part, due, number FROM message WHERE number > {MILLION} ORDER BY number;
         UPDATE counter SET next = 2 * {MILLION};
         UPDATE tally SET messages = {MILLION} WHERE state = 0;
         COMMIT;"
    );
    broker.file.connection().execute_batch(&sql).unwrap();
}

#[tokio::test]
async fn million_messages_due_at_one_instant_are_promoted_in_bounded_steps() {
    let broker = Broker::new().await;
    fill(&broker).await;
    assert!(receive(&broker.mail).await.is_empty(), "no message is early");
    pages_are_contiguous_during_inserts(&broker).await;
    broker.clock.advance(SECOND).await;
    broker.send(Envelope { to: Address::subscription("orders", "stock"), ..order("now") }).await.unwrap();
    assert_eq!(seen(&broker.stock).await, ["now"], "another subscription does not wait for them");
    let mut next = 0;
    for _ in 0..5 {
        let before = broker.held();
        for delivery in broker.mail.receive(1000, Duration::ZERO, None).await.unwrap() {
            assert_eq!(*delivery.message.id.0, *format!("m-{next}"), "in the order of sending");
            next += 1;
            assert!(delivery.due.is_some_and(|due| due <= broker.now()));
        }
        assert!(before.waiting - broker.held().waiting <= 1000);
    }
    assert!(next >= 2500, "each step delivers hundreds: {next}");
    let held = broker.held();
    assert_eq!(
        held.waiting + held.ready + held.leased,
        MILLION + PAGES + 1,
        "no message is skipped: {held:?}"
    );
}

const PAGES: usize = 3;

async fn pages_are_contiguous_during_inserts(broker: &Broker) {
    let states = vec![State::Scheduled];
    let mut query = RecordQuery { states, limit: 100, ..RecordQuery::default() };
    let mut seen = Vec::new();
    for page in 0..PAGES {
        broker.send(order(&format!("m-{}", MILLION + page)).due(after(SECOND * 1000))).await.unwrap();
        let page = broker.sqlite.ledger().unwrap().list(query.clone()).await.unwrap();
        seen.extend(page.items.iter().map(|record| record.message.id.to_string()));
        query.after = page.next;
    }
    let mut expected: Vec<_> = (0..MILLION).map(|n| format!("m-{n}")).collect();
    expected.sort();
    seen.retain(|id| id.len() < "m-1000000".len());
    assert!(seen.len() >= 297 && seen[..] == expected[..seen.len()], "{seen:?}");
}

#[tokio::test]
async fn bulk_change_applies_to_all_matches_and_records_its_origin() {
    const COUNT: usize = 1200;
    let broker = Broker::with(SqliteSettings { done: SECOND * 60, ..settings() }).await;
    let seams = Seams::virtual_time(broker.clock.clone(), 1);
    let engine = Engine::builder(Arc::new(broker.sqlite.share()), seams).build().await.unwrap();
    for n in 0..COUNT {
        let key = if n % 3 == 0 { "mine" } else { "theirs" };
        broker.send(keyed(&format!("{n:04}"), key).due(after(SECOND * 100))).await.unwrap();
    }
    let mine =
        RecordQuery { key: Some("mine".into()), states: vec![State::Scheduled], ..RecordQuery::default() };
    let cancelled = engine.monitor().change_all(mine.clone(), Change::Cancel, "ada").await.unwrap();
    assert_eq!(cancelled, Tally { changed: COUNT as u64 / 3, too_late: 0 });
    assert_eq!(broker.held().waiting, COUNT - COUNT / 3, "messages that do not match are unchanged");
    let again = engine.monitor().change_all(mine, Change::Cancel, "ada").await.unwrap();
    assert_eq!(again, Tally::default());
    let ledger = broker.sqlite.ledger().unwrap();
    let record = ledger.get(&"0003".into()).await.unwrap().remove(0);
    assert_eq!(record.state, State::Cancelled);
    assert_eq!(record.history.last().unwrap().by.as_deref(), Some("ada"));
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn ledger_read_promotes_a_bounded_number_of_due_messages() {
    let broker = Broker::new().await;
    let to_mail =
        |n: usize| Envelope { to: Address::subscription("orders", "mail"), ..order(&n.to_string()) };
    let batch: Vec<_> = (0..3500).map(|n| to_mail(n).due(after(SECOND))).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.clock.advance(SECOND).await;
    let ledger = broker.sqlite.ledger().unwrap();
    let mut before = 3500;
    while before > 0 {
        let all: u64 = ledger.counts().await.unwrap().iter().map(|count| count.count).sum();
        assert_eq!(all, 3500, "all messages are counted, in whatever state");
        let waiting = broker.held().waiting;
        assert!(waiting < before && waiting + 1000 >= before, "{waiting} after {before}");
        before = waiting;
    }
    broker.file.check();
}
