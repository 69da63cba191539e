//! What is cancelled stays where what waits is looked for, and is passed over.

use super::*;
use dwell_core::{Changed, RecordQuery, ScheduleId, Scheduler, State};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Records are kept for a minute.
async fn broker() -> Broker {
    Broker::with(SqliteSettings { done: SECOND * 60, ..settings() }).await
}

fn to_mail(id: &str, delay: Duration) -> Envelope {
    Envelope { to: Address::subscription("orders", "mail"), ..order(id) }.due(after(delay))
}

fn scheduler(broker: &Broker) -> Arc<dyn Scheduler> {
    broker.sqlite.scheduler().unwrap()
}

async fn cancel(broker: &Broker, id: &str) {
    assert_eq!(scheduler(broker).cancel(&ScheduleId(id.into())).await.unwrap(), Changed::Done);
}

/// How many are looked for when they are due.
fn entries(broker: &Broker) -> i64 {
    broker.file.connection().query_row("SELECT count(*) FROM waiting", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn what_was_cancelled_is_passed_over_when_its_time_comes_and_leaves_nothing_behind() {
    let broker = broker().await;
    for (id, seconds) in [("a", 1), ("b", 2), ("c", 3)] {
        broker.send(to_mail(id, SECOND * seconds)).await.unwrap();
    }
    cancel(&broker, "a").await;
    cancel(&broker, "c").await;
    assert_eq!((entries(&broker), broker.held().waiting), (3, 1));
    let pending = scheduler(&broker).pending(Default::default()).await.unwrap();
    assert_eq!(pending.iter().map(|pending| &*pending.id.0).collect::<Vec<_>>(), ["b"]);
    broker.file.check();
    broker.clock.advance(SECOND * 3).await;
    assert_eq!(seen(&broker.mail).await, ["b"]);
    assert!(seen(&broker.mail).await.is_empty());
    assert_eq!(entries(&broker), 0);
    broker.file.check();
}

#[tokio::test]
async fn where_nobody_receives_who_looks_at_the_ledger_clears_what_was_cancelled_away() {
    let broker = broker().await;
    broker.send(to_mail("a", SECOND)).await.unwrap();
    cancel(&broker, "a").await;
    broker.clock.advance(SECOND).await;
    let query = RecordQuery { states: vec![State::Cancelled], limit: 10, ..RecordQuery::default() };
    let page = broker.sqlite.ledger().unwrap().list(query).await.unwrap();
    assert_eq!((page.items.len(), entries(&broker)), (1, 0));
    broker.file.check();
}

#[tokio::test]
async fn what_was_cancelled_long_before_it_was_due_goes_with_its_record() {
    let broker = broker().await;
    let background = broker.sqlite.background(Box::pin(std::future::pending())).unwrap();
    tokio::spawn(broker.clock.track(Box::pin(async move { background.await.unwrap() })));
    broker.send(to_mail("a", YEAR * 10)).await.unwrap();
    broker.send(to_mail("b", YEAR * 10)).await.unwrap();
    cancel(&broker, "a").await;
    broker.clock.advance(SECOND * 30).await;
    assert_eq!(entries(&broker), 2);
    broker.clock.advance(SECOND * 120).await;
    assert_eq!((entries(&broker), broker.held().waiting), (1, 1));
    broker.file.check();
}

#[tokio::test]
async fn what_was_rescheduled_or_replaced_waits_for_its_new_time_alone() {
    let broker = broker().await;
    broker.send(to_mail("a", YEAR * 10)).await.unwrap();
    let changed = scheduler(&broker).reschedule(&ScheduleId("a".into()), after(SECOND)).await.unwrap();
    assert_eq!(changed, Changed::Done);
    for delay in [YEAR, SECOND * 2] {
        let once = Some(dwell_core::OnConflict::Replace);
        broker.send(Envelope { once, ..to_mail("b", delay) }).await.unwrap();
    }
    assert_eq!(entries(&broker), 2);
    broker.file.check();
    broker.clock.advance(SECOND * 2).await;
    assert_eq!(seen(&broker.mail).await, ["a", "b"]);
    assert_eq!(entries(&broker), 0);
}

#[tokio::test]
async fn thousands_that_were_cancelled_hold_up_nobody_behind_them() {
    const COUNT: usize = 2500;
    let broker = broker().await;
    let batch: Vec<_> = (0..COUNT).map(|n| to_mail(&n.to_string(), SECOND)).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    broker.send(to_mail("alive", SECOND * 2)).await.unwrap();
    for n in 0..COUNT {
        cancel(&broker, &n.to_string()).await;
    }
    let receiving = broker.receiving(&broker.mail, 10, SECOND * 10);
    broker.clock.advance(SECOND * 2 - MILLI).await;
    assert!(receiving.is_waiting(), "nothing is early");
    broker.clock.advance(MILLI).await;
    assert_eq!(receiving.got(), (SECOND * 2, vec!["alive".to_owned()]));
    assert_eq!(entries(&broker), 0);
    broker.file.check();
}
