use super::*;
use dwell_core::{Changed, Entries, Pending, Query, Scheduler, wire};

async fn page(scheduler: &Arc<dyn Scheduler>, query: Query) -> Vec<Pending> {
    scheduler
        .pending(Query { limit: if query.limit == 0 { 100 } else { query.limit }, ..query })
        .await
        .unwrap()
}

fn names(pending: &[Pending]) -> Vec<&str> {
    pending.iter().map(|pending| &*pending.id.0).collect()
}

#[tokio::test]
async fn cancel_is_exact_until_the_due_time() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    let [a, b, c]: [Entries; 3] = ["a", "b", "c"].map(Into::into);
    for id in ["a", "b"] {
        broker.send(order(id).due(after(SECOND))).await.unwrap();
    }
    broker.clock.advance(SECOND - MILLI).await;
    assert_eq!(scheduler.cancel(&a).await.unwrap(), Changed::Done);
    assert_eq!(scheduler.cancel(&a).await.unwrap(), Changed::NotFound);
    broker.clock.advance(MILLI).await;
    assert_eq!(scheduler.cancel(&b).await.unwrap(), Changed::TooLate, "due, although no consumer has polled");
    assert_eq!(scheduler.reschedule(&b, after(SECOND)).await.unwrap(), Changed::TooLate);
    assert_eq!(seen(&broker.mail).await, ["b"]);
    assert_eq!(scheduler.cancel(&b).await.unwrap(), Changed::TooLate, "fired");
    assert_eq!(scheduler.cancel(&c).await.unwrap(), Changed::NotFound);
    assert_eq!(scheduler.reschedule(&c, after(SECOND)).await.unwrap(), Changed::NotFound);
}

#[tokio::test]
async fn cancel_searches_all_topics_and_returns_the_best_result() {
    let broker = Broker::new().await;
    let invoices = broker.subscribe(Subscription::new("invoices", "mail")).await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    let later = |topic: &str, delay| Envelope { to: Address::topic(topic), ..order("a") }.due(after(delay));
    broker.send(later("orders", SECOND)).await.unwrap();
    broker.send(later("invoices", SECOND * 2)).await.unwrap();
    broker.clock.advance(SECOND).await;
    let id: Entries = "a".into();
    assert_eq!(scheduler.cancel(&id).await.unwrap(), Changed::Done);
    assert_eq!(scheduler.cancel(&id).await.unwrap(), Changed::TooLate);
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
    assert!(seen(&invoices).await.is_empty());
}

#[tokio::test]
async fn reschedule_moves_entries_earlier_and_later() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    for id in ["a", "b", "c"] {
        broker.send(order(id).due(after(SECOND * 10))).await.unwrap();
    }
    let reschedule = async |id: &str, due| scheduler.reschedule(&id.into(), due).await.unwrap();
    assert_eq!(reschedule("a", after(SECOND * 20)).await, Changed::Done);
    assert_eq!(reschedule("b", after(SECOND)).await, Changed::Done);
    assert_eq!(reschedule("c", Due::NOW).await, Changed::Done);
    assert_eq!(seen(&broker.mail).await, ["c"]);
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["b"]);
    broker.clock.advance(SECOND * 18).await;
    assert!(seen(&broker.mail).await.is_empty());
    broker.clock.advance(SECOND).await;
    assert_eq!(seen(&broker.mail).await, ["a"]);
}

#[tokio::test]
async fn schedule_sends_due_messages_at_once() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    let nowhere = Envelope { to: Address::topic("nowhere"), ..order("c") };
    let entries = vec![order("a").due(after(SECOND)), order("b").due(Due::At(Timestamp(0))), nowhere];
    let results = scheduler.schedule(entries).await;
    assert_eq!(results[0].as_ref().unwrap().due, Some(broker.now().after(SECOND)));
    assert_eq!(results[1].as_ref().unwrap().due, None);
    assert_eq!(results[2].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(seen(&broker.mail).await, ["b"]);
}

#[tokio::test]
async fn pending_is_sorted_by_due_time_and_id() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    for (id, seconds) in [("c", 2), ("b", 1), ("a", 2), ("past", 0)] {
        broker.send(order(id).due(after(SECOND * seconds))).await.unwrap();
    }
    let pending = page(&scheduler, Query::default()).await;
    assert_eq!(names(&pending), ["b@orders", "a@orders", "c@orders"]);
    assert_eq!(pending[0].envelope, order("b").due(Due::At(broker.now().after(SECOND))));
    broker.clock.advance(SECOND).await;
    assert_eq!(
        names(&page(&scheduler, Query::default()).await),
        ["a@orders", "c@orders"],
        "due messages are not pending"
    );
    let none = Query { limit: 0, ..Query::default() };
    assert!(scheduler.pending(none).await.unwrap().is_empty(), "a limit of zero returns none");
}

#[tokio::test]
async fn pages_are_stable_during_inserts() {
    let broker = Broker::new().await;
    let scheduler = broker.sqlite.scheduler().unwrap();
    for n in 0..10 {
        broker.send(order(&format!("m{n}")).due(after(SECOND * (10 + n / 3)))).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut after_last = None;
    loop {
        let query = Query { after: after_last.clone(), limit: 3, ..Query::default() };
        let found = page(&scheduler, query).await;
        let Some(last) = found.last() else { break };
        after_last = Some((last.due, last.id.clone()));
        seen.extend(names(&found).into_iter().map(str::to_owned));
        broker.send(order(&format!("a{}", seen.len())).due(after(SECOND))).await.unwrap();
    }
    assert_eq!(seen, (0..10).map(|n| format!("m{n}@orders")).collect::<Vec<_>>());
}

#[tokio::test]
async fn pending_filters_by_destination_key_and_message() {
    let broker = Broker::new().await;
    broker.sqlite.provision(&[Topic::named("relay").keep()], &[], OnMissing::Create).await.unwrap();
    let scheduler = broker.sqlite.scheduler().unwrap();
    let mail = Address::subscription("orders", "mail");
    broker.send(keyed("published", "k").due(after(SECOND))).await.unwrap();
    broker.send(Envelope { to: mail.clone(), ..keyed("direct", "k") }.due(after(SECOND * 2))).await.unwrap();
    let mut forwarded = Envelope { to: Address::topic("relay"), ..order("forwarded") }.due(after(SECOND * 3));
    wire::set_destination(&mut forwarded.message.headers, &mail);
    broker.send(forwarded).await.unwrap();
    let mut retry = Envelope { to: mail.clone(), ..order("published") }.due(after(SECOND * 4));
    retry.message.attempts.handled = 1;
    broker.send(retry).await.unwrap();

    let by = async |query: Query| {
        let pending = page(&scheduler, query).await;
        names(&pending).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let to = |to: &Address| Query { to: Some(to.clone()), ..Query::default() };
    assert_eq!(by(to(&Address::topic("orders"))).await, ["published@orders"]);
    assert_eq!(
        by(to(&mail)).await,
        ["direct@orders/mail", "forwarded@orders/mail", "published@orders/mail#1"]
    );
    assert!(by(to(&Address::topic("relay"))).await.is_empty());
    assert_eq!(
        by(Query { key: Some("k".into()), ..Query::default() }).await,
        ["published@orders", "direct@orders/mail"]
    );
    let of = |id: &str| Query { message: Some(id.into()), ..Query::default() };
    assert_eq!(by(of("published")).await, ["published@orders", "published@orders/mail#1"]);
    broker.clock.advance(SECOND).await;
    assert_eq!(by(of("published")).await, ["published@orders/mail#1"]);
    receive(&broker.mail).await;
    assert_eq!(by(of("published")).await, ["published@orders/mail#1"]);
    assert_eq!(scheduler.cancel(&"published".into()).await.unwrap(), Changed::Done);
    assert!(by(of("published")).await.is_empty());
}
