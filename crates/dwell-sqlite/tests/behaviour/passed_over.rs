//! Stale entries of cancelled and rescheduled messages, which are skipped when they are due.

use super::*;
use dwell_core::{Changed, Query, RecordQuery, Scheduler, State};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns a broker that keeps records for a minute.
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
    assert_eq!(scheduler(broker).cancel(&id.into()).await.unwrap(), Changed::Done);
}

async fn reschedule(broker: &Broker, id: &str, delay: Duration) {
    let changed = scheduler(broker).reschedule(&id.into(), after(delay)).await.unwrap();
    assert_eq!(changed, Changed::Done);
}

/// Returns the ids of pending messages, in order.
async fn pending(broker: &Broker) -> Vec<String> {
    let query = Query { limit: 100, ..Query::default() };
    let pending = scheduler(broker).pending(query).await.unwrap();
    pending.iter().map(|pending| pending.envelope.message.id.to_string()).collect()
}

/// Returns the number of entries, including stale ones.
fn entries(broker: &Broker) -> i64 {
    broker.file.connection().query_row("SELECT count(*) FROM waiting", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn cancelled_entries_are_skipped_and_removed_when_due() {
    let broker = broker().await;
    for (id, seconds) in [("a", 1), ("b", 2), ("c", 3)] {
        broker.send(to_mail(id, SECOND * seconds)).await.unwrap();
    }
    cancel(&broker, "a").await;
    cancel(&broker, "c").await;
    assert_eq!((entries(&broker), broker.held().waiting), (3, 1));
    assert_eq!(pending(&broker).await, ["b"]);
    broker.file.check();
    broker.clock.advance(SECOND * 3).await;
    assert_eq!(seen(&broker.mail).await, ["b"]);
    assert!(seen(&broker.mail).await.is_empty());
    assert_eq!(entries(&broker), 0);
    broker.file.check();
}

#[tokio::test]
async fn stale_entry_of_an_otherwise_empty_topic_is_removed_when_due() {
    let broker = Broker::with(SqliteSettings { done: YEAR, busy_timeout: MILLI * 100, ..settings() }).await;
    broker.send(to_mail("a", SECOND * 10)).await.unwrap();
    cancel(&broker, "a").await;
    assert!(seen(&broker.mail).await.is_empty(), "a consumer polls before the due time");
    broker.clock.advance(SECOND * 20).await;
    let ledger = broker.sqlite.ledger().unwrap();
    ledger.counts().await.unwrap();
    assert_eq!(entries(&broker), 0);
    let other = broker.file.connection();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    ledger.counts().await.expect("a later read writes nothing");
}

#[tokio::test]
async fn ledger_read_removes_stale_entries_without_a_consumer() {
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
async fn entry_cancelled_long_before_it_is_due_is_removed_with_its_record() {
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
async fn rescheduled_or_replaced_message_fires_only_at_its_new_time() {
    let broker = broker().await;
    broker.send(to_mail("a", SECOND * 10)).await.unwrap();
    reschedule(&broker, "a", SECOND).await;
    for delay in [YEAR, SECOND * 2] {
        let once = Some(dwell_core::OnConflict::Replace);
        broker.send(Envelope { once, ..to_mail("b", delay) }).await.unwrap();
    }
    assert_eq!(entries(&broker), 3, "the rescheduled message has left one entry behind");
    assert_eq!(pending(&broker).await, ["a", "b"]);
    broker.file.check();
    broker.clock.advance(SECOND * 2).await;
    assert_eq!(seen(&broker.mail).await, ["a", "b"]);
    broker.file.check();
    broker.clock.advance(SECOND * 8).await;
    assert!(seen(&broker.mail).await.is_empty(), "nothing fires at the former time");
    assert_eq!(entries(&broker), 0);
}

#[tokio::test]
async fn rescheduled_messages_arrive_in_due_order_among_others() {
    let broker = broker().await;
    // The only subscription of a topic gets due messages directly; with several, they become ready
    // first.
    let alone = broker.subscribe(Subscription::new("invoices", "mail")).await;
    for (to, consumer) in [(Address::topic("invoices"), &alone), (Address::topic("orders"), &broker.mail)] {
        let send = async |id: &str, delay| {
            broker.send(Envelope { to: to.clone(), ..order(id) }.due(after(delay))).await.unwrap();
        };
        for (id, tenths) in [("a", 10), ("b", 90), ("c", 20), ("d", 30), ("e", 5)] {
            send(id, SECOND * tenths / 10).await;
        }
        reschedule(&broker, "b", SECOND * 15 / 10).await;
        reschedule(&broker, "e", SECOND * 25 / 10).await;
        assert_eq!(pending(&broker).await, ["a", "b", "c", "e", "d"]);
        broker.clock.advance(SECOND * 2).await;
        assert_eq!(seen(consumer).await, ["a", "b", "c"]);
        broker.clock.advance(SECOND * 1).await;
        assert_eq!(seen(consumer).await, ["e", "d"]);
        broker.file.check();
    }
}

#[tokio::test]
async fn rescheduling_there_and_back_leaves_one_pending_message() {
    let broker = broker().await;
    broker.send(to_mail("a", SECOND * 2)).await.unwrap();
    reschedule(&broker, "a", SECOND).await;
    reschedule(&broker, "a", SECOND * 2).await;
    assert_eq!(pending(&broker).await, ["a"]);
    broker.file.check();
    broker.clock.advance(SECOND * 2 - MILLI).await;
    assert!(seen(&broker.mail).await.is_empty(), "no message is early");
    broker.clock.advance(MILLI).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
    assert!(seen(&broker.mail).await.is_empty(), "the message is delivered once");
    assert_eq!(entries(&broker), 0);
    broker.file.check();
}

#[tokio::test]
async fn repeated_rescheduling_leaves_one_stale_entry_removed_with_the_record() {
    let broker = broker().await;
    let background = broker.sqlite.background(Box::pin(std::future::pending())).unwrap();
    tokio::spawn(broker.clock.track(Box::pin(async move { background.await.unwrap() })));
    for id in ["handled", "cancelled", "deferred"] {
        broker.send(to_mail(id, YEAR * 10)).await.unwrap();
        for n in 0..100 {
            reschedule(&broker, id, YEAR * 9 - SECOND * n).await;
        }
    }
    assert_eq!(entries(&broker), 6);
    cancel(&broker, "cancelled").await;
    for id in ["handled", "deferred"] {
        reschedule(&broker, id, SECOND).await;
    }
    broker.clock.advance(SECOND).await;
    for delivery in receive(&broker.mail).await {
        let action = match &*delivery.message.id.0 {
            "handled" => Action::ACK,
            _ => Action::Move { to: Address::subscription("orders", "mail"), due: after(YEAR) },
        };
        assert!(settle(&broker.mail, delivery, action).await.is_empty());
    }
    broker.file.check();
    assert_eq!(entries(&broker), 4, "one of `handled`, two of `cancelled`, and the deferral");
    broker.clock.advance(SECOND * 120).await;
    assert_eq!((entries(&broker), broker.held().waiting), (1, 1));
    broker.file.check();
}

#[tokio::test]
async fn thousands_of_cancelled_messages_do_not_block_later_ones() {
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
    assert!(receiving.is_waiting(), "no message is early");
    broker.clock.advance(MILLI).await;
    assert_eq!(receiving.got(), (SECOND * 2, vec!["alive".to_owned()]));
    assert_eq!(entries(&broker), 0);
    broker.file.check();
}

/// Returns a broker with a file of limited size and this number of cancelled messages, due in two
/// seconds, in a topic with a single subscription.
async fn cancelled_in_a_limited_file(count: usize) -> (Broker, Arc<dyn Consumer>) {
    let broker =
        Broker::with(SqliteSettings { max_size: Some(64 << 20), done: SECOND * 60, ..settings() }).await;
    let alone = broker.subscribe(Subscription::new("invoices", "mail")).await;
    let batch: Vec<_> = (0..count).map(|n| invoice(&n.to_string(), SECOND * 2)).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    for n in 0..count {
        cancel(&broker, &n.to_string()).await;
    }
    (broker, alone)
}

fn invoice(id: &str, delay: Duration) -> Envelope {
    Envelope { to: Address::topic("invoices"), ..order(id) }.due(after(delay))
}

async fn cancelled(broker: &Broker) -> usize {
    let query = RecordQuery { states: vec![State::Cancelled], limit: 10_000, ..RecordQuery::default() };
    broker.sqlite.ledger().unwrap().list(query).await.unwrap().items.len()
}

#[tokio::test]
async fn stale_entries_are_not_mistaken_for_messages_without_room() {
    const COUNT: usize = 1500;
    let (broker, alone) = cancelled_in_a_limited_file(COUNT).await;
    broker.send(invoice("alive", SECOND)).await.unwrap();
    broker.clock.advance(SECOND * 2).await;
    assert_eq!(ids(&alone.receive(10, Duration::ZERO, None).await.unwrap()), ["alive"]);
    assert!(alone.receive(10, Duration::ZERO, None).await.unwrap().is_empty());
    assert_eq!((cancelled(&broker).await, entries(&broker)), (COUNT, 0), "no record is removed early");
    broker.file.check();
}

#[tokio::test]
async fn stale_entries_do_not_block_a_new_subscription() {
    const COUNT: usize = 1500;
    let (broker, _alone) = cancelled_in_a_limited_file(COUNT).await;
    broker.clock.advance(SECOND * 2).await;
    broker.subscribe(Subscription::new("invoices", "stock")).await;
    assert_eq!(cancelled(&broker).await, COUNT);
}

#[tokio::test]
async fn stale_entries_are_removed_even_if_messages_are_always_ready() {
    let broker = broker().await;
    for n in 0..200 {
        broker.send(to_mail(&format!("late-{n}"), SECOND)).await.unwrap();
        cancel(&broker, &format!("late-{n}")).await;
    }
    for n in 0..10 {
        broker.send(order(&n.to_string())).await.unwrap();
    }
    broker.clock.advance(SECOND * 2).await;
    assert_eq!(ids(&broker.mail.receive(1, Duration::ZERO, None).await.unwrap()), ["0"]);
    assert_eq!(entries(&broker), 0);
}
