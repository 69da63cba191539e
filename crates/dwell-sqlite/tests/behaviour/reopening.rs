use super::*;
use dwell_core::{Changed, OnConflict, Receipt};

#[tokio::test]
async fn all_state_survives_a_crash_and_reopening() {
    let Broker { clock, sqlite, mail, file, .. } = Broker::new().await;
    let send =
        async |sqlite: &Sqlite, envelope| sqlite.producer().await.unwrap().send(&[envelope]).await.remove(0);
    let to_mail = |id: &str| Envelope { to: Address::subscription("orders", "mail"), ..order(id) };
    send(&sqlite, to_mail("held")).await.unwrap();
    let held = one(&mail).await;
    send(&sqlite, to_mail("ready")).await.unwrap();
    let due = send(&sqlite, to_mail("waits").due(after(SECOND)).once(OnConflict::Fail)).await.unwrap().due;
    // Like a crash: nothing is closed.
    drop((sqlite, mail));
    let again = file.open(settings(), &clock).unwrap();
    let mail = again.consumer(Subscription::new("orders", "mail")).await.unwrap();
    assert_eq!(seen(&mail).await, ["ready"]);
    let sent = send(&again, to_mail("waits").once(OnConflict::Fail)).await.unwrap();
    assert_eq!(sent, Sent { due, duplicate: true });
    clock.advance(SECOND).await;
    assert_eq!(seen(&mail).await, ["waits"]);
    ack(&mail, held).await;
    assert_eq!(file.held(), Held { waiting: 0, ready: 0, leased: 2 }, "its receipt is still valid");
    file.check();
}

#[tokio::test]
async fn fences_are_never_reused() {
    let (clock, file) = (VirtualClock::new(), Temporary::new());
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..5 {
        let sqlite = file.open(settings(), &clock).unwrap();
        let of = Subscription::new("orders", "mail");
        sqlite.provision(&[], from_ref(&of), OnMissing::Create).await.unwrap();
        let producer = sqlite.producer().await.unwrap();
        producer.send(&[order(&round.to_string())]).await.remove(0).unwrap();
        let mail = sqlite.consumer(of).await.unwrap();
        for delivery in receive(&mail).await {
            assert!(seen.insert(delivery.receipt.lease().fence), "{delivery:?}");
        }
        // Closed in order, so all messages are released: the next consumer gets all of them, with
        // new fences.
        sqlite.close().await.unwrap();
    }
    assert_eq!(seen.len(), 1 + 2 + 3 + 4 + 5);
}

#[tokio::test]
async fn restored_backup_is_used_after_reopen() {
    let broker = Broker::new().await;
    let backup = broker.file.path().with_extension("backup");
    broker.send(order("old")).await.unwrap();
    broker.file.connection().execute("VACUUM INTO ?1", [backup.to_string_lossy()]).unwrap();
    broker.send(order("new")).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", broker.file.path().display()));
    }
    std::fs::rename(&backup, broker.file.path()).unwrap();
    broker.sqlite.reopen().await.unwrap();
    assert_eq!(seen(&broker.mail).await, ["old"]);
    assert_eq!(broker.sqlite.ledger().unwrap().get(&"new".into()).await.unwrap().len(), 0);
}

#[tokio::test]
async fn closing_a_connection_releases_its_messages_and_keeps_others_open() {
    let broker = Broker::new().await;
    let other = broker.sqlite.share();
    let member = other.consumer(Subscription::new("orders", "mail")).await.unwrap();
    broker.send(order("a")).await.unwrap();
    let held = one(&member).await;
    let waiting = broker.receiving(&broker.mail, 1, SECOND * 5);
    broker.clock.idle().await;
    other.close().await.unwrap();
    broker.clock.idle().await;
    assert_eq!(waiting.got(), (Duration::ZERO, vec!["a".into()]));
    assert_eq!(kind(member.receive(1, Duration::ZERO, None).await), ErrorKind::Closed);
    let unsettled = settle(&member, held, Action::ACK).await.remove(0);
    assert_eq!(unsettled.error.kind(), ErrorKind::Closed);
    assert_eq!(kind(other.producer().await.map(|_| ())), ErrorKind::Closed);
    broker.send(order("b")).await.unwrap();
    assert_eq!(seen(&broker.mail).await, ["b"]);
}

#[tokio::test]
async fn last_close_closes_everything_and_leaves_one_file() {
    let broker = Broker::new().await;
    let (scheduler, ledger) = (broker.sqlite.scheduler().unwrap(), broker.sqlite.ledger().unwrap());
    let inbox = broker.sqlite.inbox().unwrap();
    broker.send(order("a")).await.unwrap();
    let waiting = broker.receiving(&broker.another().await, 1, LEASE);
    broker.clock.idle().await;
    assert_eq!(waiting.got().1, ["a"]);
    let waiting = broker.receiving(&broker.another().await, 1, LEASE);
    broker.clock.idle().await;
    broker.sqlite.close().await.unwrap();
    broker.sqlite.close().await.unwrap();
    broker.clock.idle().await;
    assert_eq!(waiting.failed(), ErrorKind::Closed);
    assert_eq!(kind(scheduler.schedule(vec![order("c")]).await.remove(0)), ErrorKind::Closed);
    assert_eq!(kind::<Changed>(scheduler.cancel(&"a".into()).await), ErrorKind::Closed);
    assert_eq!(kind(scheduler.pending(dwell_core::Query::default()).await), ErrorKind::Closed);
    assert_eq!(kind(ledger.counts().await), ErrorKind::Closed);
    assert_eq!(kind(inbox.claim("mail", &"a".into(), 1, LEASE).await), ErrorKind::Closed);
    assert_eq!(kind(broker.sqlite.provision(&[], &[], OnMissing::Create).await), ErrorKind::Closed);
    let log = format!("{}-wal", broker.file.path().display());
    assert!(std::fs::metadata(&log).map_or(0, |log| log.len()) == 0, "the log is empty or removed");
}

#[tokio::test]
async fn receipt_from_before_a_reopen_is_stale() {
    let broker = Broker::new().await;
    broker.send(order("a")).await.unwrap();
    let delivery = one(&broker.mail).await;
    let lease = delivery.receipt.lease();
    release_all(&broker.mail, vec![delivery]).await;
    broker.sqlite.reopen().await.unwrap();
    let again = one(&broker.mail).await;
    assert_ne!(again.receipt.lease().fence, lease.fence);
    let late = Delivery {
        message: again.message.clone(),
        deliveries: None,
        due: None,
        problem: None,
        receipt: Receipt::new(lease.position, lease.fence),
    };
    assert_eq!(settle(&broker.mail, late, Action::ACK).await[0].error.kind(), ErrorKind::Stale);
    ack(&broker.mail, again).await;
}

#[tokio::test]
async fn memory_database_works_and_cannot_be_reopened() {
    let clock = VirtualClock::new();
    let seams = dwell_core::Seams::virtual_time(clock.clone(), 1);
    let sqlite = Sqlite::open(SqliteSettings::memory(), seams).unwrap();
    assert!(!sqlite.capabilities().durable);
    let of = Subscription::new("orders", "mail");
    sqlite.provision(&[], from_ref(&of), OnMissing::Create).await.unwrap();
    sqlite.producer().await.unwrap().send(&[order("a").due(after(SECOND))]).await.remove(0).unwrap();
    clock.advance(SECOND).await;
    let mail = sqlite.consumer(of).await.unwrap();
    ack(&mail, one(&mail).await).await;
    let records = sqlite.ledger().unwrap().get(&"a".into()).await.unwrap();
    assert_eq!(records[0].state, dwell_core::State::Done);
    assert_eq!(kind(sqlite.reopen().await), ErrorKind::Unsupported);
}

#[tokio::test]
async fn tidying_an_empty_file_of_another_program_terminates() {
    let file = Temporary::new();
    file.connection().pragma_update(None, "journal_mode", "WAL").unwrap();
    let broker = Broker::on(VirtualClock::new(), file, settings()).await;
    let batch: Vec<_> = (0..3000).map(|n| super::faults::large(&n.to_string())).collect();
    broker.sqlite.producer().await.unwrap().send(&batch).await;
    assert_eq!(super::faults::drain(&broker).await.len(), 3000);
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = stop.clone();
    let work = broker.sqlite.background(Box::pin(async move { stopped.notified().await })).unwrap();
    let running = tokio::spawn(broker.clock.track(Box::pin(async move { work.await.unwrap() })));
    for _ in 0..3 {
        broker.clock.advance(SECOND * 61).await;
    }
    stop.notify_one();
    running.await.unwrap();
    let free = broker.sqlite.usage().await.unwrap().free;
    assert!(free > 1 << 20, "such a file cannot return free space: {free}");
}
