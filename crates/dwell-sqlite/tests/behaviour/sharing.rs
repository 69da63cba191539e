//! Two connections that share only the file, like two processes.

use super::*;
use dwell_core::{Changed, OnConflict, RecordQuery};

const POLL: Duration = Duration::from_millis(250);

/// Opens the same file as another process would.
async fn stranger(broker: &Broker) -> (Sqlite, Arc<dyn Consumer>) {
    let sqlite = broker.file.open(settings(), &broker.clock).unwrap();
    let mail = sqlite.consumer(Subscription::new("orders", "mail")).await.unwrap();
    (sqlite, mail)
}

async fn send(sqlite: &Sqlite, envelope: Envelope) -> Result<Sent> {
    sqlite.producer().await?.send(&[envelope]).await.remove(0)
}

#[tokio::test]
async fn message_of_another_process_is_noticed_within_the_poll_interval() {
    let broker = Broker::new().await;
    let (other, _mail) = stranger(&broker).await;
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 60);
    broker.clock.idle().await;
    send(&other, order("a")).await.unwrap();
    broker.clock.advance(POLL).await;
    assert_eq!(waiting.got(), (POLL, vec!["a".into()]));

    // A message that it schedules early enough arrives at the exact due time.
    let waiting = broker.receiving(&broker.mail, 10, SECOND * 60);
    send(&other, order("b").due(after(SECOND))).await.unwrap();
    broker.clock.advance(POLL).await;
    broker.clock.advance(SECOND).await;
    assert_eq!(waiting.got(), (POLL + SECOND, vec!["b".into()]));
}

#[tokio::test]
async fn message_of_another_process_is_noticed_after_a_failed_transaction() {
    let kept = SqliteSettings { max_size: Some(2 << 20), done: SECOND * 60, ..settings() };
    let broker = Broker::with(kept).await;
    let (other, _mail) = stranger(&broker).await;
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("first") }).await.unwrap();
    let first = one(&broker.mail).await;
    let waiting = broker.receiving(&broker.stock, 10, SECOND * 60);
    broker.clock.idle().await;
    send(&other, Envelope { to: Address::subscription("orders", "stock"), ..order("a") }).await.unwrap();
    // This transaction sees the change, and is rolled back: there is never room for such a result.
    let result = Some(vec![b'x'; 3 << 20].into());
    let unsettled = settle(&broker.mail, first, Action::Ack { result }).await.remove(0);
    assert_eq!(unsettled.error.kind(), ErrorKind::StorageFull);
    assert!(unsettled.error.to_string().contains("`max_size`"), "{}", unsettled.error);
    broker.clock.advance(POLL).await;
    assert_eq!(waiting.got(), (POLL, vec!["a".into()]));
}

#[tokio::test]
async fn processes_share_the_work_and_deliver_each_message_once() {
    let broker = Broker::new().await;
    let (other, theirs) = stranger(&broker).await;
    let mut sent = Vec::new();
    for n in 0..200 {
        let sqlite = if n % 2 == 0 { &broker.sqlite } else { &other };
        send(sqlite, Envelope { to: Address::subscription("orders", "mail"), ..order(&n.to_string()) })
            .await
            .unwrap();
        sent.push(n.to_string());
    }
    let (mut ours_seen, mut theirs_seen) = (Vec::new(), Vec::new());
    while ours_seen.len() + theirs_seen.len() < sent.len() {
        for (consumer, seen) in [(&broker.mail, &mut ours_seen), (&theirs, &mut theirs_seen)] {
            for delivery in consumer.receive(7, Duration::ZERO, None).await.unwrap() {
                seen.push(delivery.message.id.to_string());
                ack(consumer, delivery).await;
            }
        }
    }
    assert!(ours_seen.len() > 50 && theirs_seen.len() > 50);
    let mut all = [ours_seen, theirs_seen].concat();
    all.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(all, sent);
    broker.file.check();
}

#[tokio::test]
async fn processes_share_fences_keys_ids_topics_and_counts() {
    let broker = Broker::new().await;
    let (other, theirs) = stranger(&broker).await;
    send(&broker.sqlite, keyed("a1", "k")).await.unwrap();
    send(&other, keyed("a2", "k")).await.unwrap();
    let ours = broker.mail.receive(1, Duration::ZERO, None).await.unwrap().remove(0);
    assert!(seen(&theirs).await.is_empty(), "this process holds the key");
    ack(&broker.mail, ours).await;
    let theirs_now = one(&theirs).await;
    assert_eq!(theirs_now.message.id.to_string(), "a2");

    send(&other, order("chosen").once(OnConflict::Fail)).await.unwrap();
    assert!(send(&broker.sqlite, order("chosen").once(OnConflict::Fail)).await.unwrap().duplicate);
    other.provision(&[], &[Subscription::new("invoices", "mail")], OnMissing::Create).await.unwrap();
    send(&broker.sqlite, Envelope { to: Address::topic("invoices"), ..order("i") }).await.unwrap();
    send(&other, order("waits").due(after(SECOND))).await.unwrap();
    let scheduler = broker.sqlite.scheduler().unwrap();
    assert_eq!(scheduler.cancel(&"waits".into()).await.unwrap(), Changed::Done);

    for sqlite in [&broker.sqlite, &other] {
        let query = RecordQuery { topic: Some("invoices".into()), limit: 9, ..RecordQuery::default() };
        assert_eq!(sqlite.ledger().unwrap().list(query).await.unwrap().items.len(), 1);
        let counts = sqlite.ledger().unwrap().counts().await.unwrap();
        assert_eq!(counts.iter().map(|count| count.count).sum::<u64>(), 6, "{counts:?}");
    }
    broker.file.check();
}

#[tokio::test]
async fn messages_of_a_dead_process_return_after_the_lease() {
    let broker = Broker::new().await;
    let (other, theirs) = stranger(&broker).await;
    send(&other, order("a")).await.unwrap();
    let held = one(&theirs).await;
    drop((other, theirs, held));
    let waiting = broker.receiving(&broker.mail, 10, LEASE * 2);
    broker.clock.advance(LEASE).await;
    assert_eq!(waiting.got(), (LEASE, vec!["a".into()]));
}

#[tokio::test]
async fn wall_clock_change_keeps_leases_of_a_live_process() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let held = one(&broker.mail).await;
    broker.clock.step_wall(3_600_000);
    // This process notices the change with its next transaction; other processes only read the
    // stored leases.
    assert!(seen(&broker.mail).await.is_empty());
    let (_other, theirs) = stranger(&broker).await;
    assert!(seen(&theirs).await.is_empty(), "the lease has moved with the clock");
    broker.clock.advance(LEASE - MILLI).await;
    assert!(seen(&theirs).await.is_empty());
    broker.clock.advance(MILLI).await;
    assert_eq!(seen(&theirs).await, ["a"]);
    drop(held);
}
