//! Tests of a file that has reached its `max_size`: all its messages can be listed, delivered and
//! settled.

use super::faults::{drain, fill, sized};
use super::*;
use dwell_core::{OnConflict, RecordQuery};

const SIZES: [usize; 3] = [20, 300, 900];

/// Returns a broker with a small file that keeps finished records.
async fn small() -> Broker {
    Broker::with(SqliteSettings { max_size: Some(2 << 20), done: SECOND * 3600, ..settings() }).await
}

/// Handles all messages of one subscription, as far as there is room beside the messages of the
/// others.
async fn empty(consumer: &Arc<dyn Consumer>) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        match consumer.receive(100, Duration::ZERO, None).await {
            Ok(deliveries) if deliveries.is_empty() => return seen,
            Ok(deliveries) => {
                seen.extend(ids(&deliveries));
                for delivery in deliveries {
                    ack(consumer, delivery).await;
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                assert!(error.is_retryable() && error.to_string().contains("catch up"), "{error}");
                return seen;
            }
        }
    }
}

/// Handles up to this number of messages, one settlement at a time.
async fn take(consumer: &Arc<dyn Consumer>, most: usize) -> Vec<String> {
    let deliveries = consumer.receive(most, Duration::ZERO, None).await.unwrap();
    let seen = ids(&deliveries);
    for delivery in deliveries {
        ack(consumer, delivery).await;
    }
    seen
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort_by_key(|id| id.parse::<u32>().unwrap());
    ids
}

fn publish(id: &str, bytes: usize) -> Envelope {
    Envelope { to: Address::topic("orders"), ..sized(id, bytes) }
}

#[tokio::test]
async fn pending_publishes_in_a_full_file_reach_all_subscriptions() {
    for bytes in SIZES {
        for in_turns in [true, false] {
            let broker = small().await;
            let make = |n: usize| publish(&n.to_string(), bytes).due(after(SECOND));
            let (confirmed, error) = fill(&broker, make).await;
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert!(confirmed.len() > 200, "{}", confirmed.len());
            broker.clock.advance(SECOND * 2).await;

            // The ledger lists the messages, even those that cannot be promoted.
            let ledger = broker.sqlite.ledger().unwrap();
            let count: u64 = ledger.counts().await.unwrap().iter().map(|count| count.count).sum();
            assert!(count >= confirmed.len() as u64, "{bytes}: {count}");
            let query = RecordQuery { limit: 10, ..RecordQuery::default() };
            assert_eq!(ledger.list(query).await.unwrap().items.len(), 10);

            let (mut mail, mut stock) = (Vec::new(), Vec::new());
            loop {
                let (some, others) = match in_turns {
                    true => (take(&broker.mail, 7).await, take(&broker.stock, 100).await),
                    false => (empty(&broker.mail).await, empty(&broker.stock).await),
                };
                if some.is_empty() && others.is_empty() {
                    break;
                }
                mail.extend(some);
                stock.extend(others);
            }
            assert!(broker.held().is_empty(), "{bytes}: {:?} are left", broker.held());
            assert_eq!(sorted(mail), confirmed, "{bytes}");
            assert_eq!(sorted(stock), confirmed, "{bytes}");
            broker.file.check();
        }
    }
}

#[tokio::test]
async fn message_for_one_subscription_passes_publishes_without_room() {
    let broker = small().await;
    let more: Vec<_> = (0..200).map(|n| Subscription::new("orders", format!("more-{n}"))).collect();
    broker.sqlite.provision(&[], &more, OnMissing::Create).await.unwrap();
    broker.send(sized("alone", 20).due(after(SECOND * 2))).await.unwrap();
    let make = |n: usize| Envelope { copy: true, ..publish(&n.to_string(), 20).due(after(SECOND)) };
    let (before, _) = fill(&broker, make).await;
    assert!(before.len() > 1000, "{}", before.len());
    broker.clock.advance(SECOND).await;
    let error = broker.mail.receive(10, Duration::ZERO, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    broker.clock.advance(SECOND).await;
    assert_eq!(take(&broker.mail, 10).await, ["alone"]);
    broker.file.check();
}

#[tokio::test]
async fn chosen_ids_stay_known_after_records_are_removed_for_room() {
    for bytes in SIZES {
        for max in [1, 100] {
            let broker = small().await;
            let make = |id: &str| Envelope { once: Some(OnConflict::Fail), ..sized(id, bytes) };
            let (confirmed, error) = fill(&broker, |n| make(&n.to_string()).due(after(SECOND))).await;
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            broker.clock.advance(SECOND * 2).await;
            let mut seen = Vec::new();
            loop {
                let found = take(&broker.mail, max).await;
                if found.is_empty() {
                    break;
                }
                seen.extend(found);
            }
            assert_eq!(sorted(seen), confirmed, "{bytes}, {max} at a time");
            broker.file.check();
            for id in [confirmed.first().unwrap(), confirmed.last().unwrap()] {
                assert!(broker.send(make(id)).await.unwrap().duplicate, "{id} of {}", confirmed.len());
            }
            assert!(drain(&broker).await.is_empty());
        }
    }
}

#[tokio::test]
async fn maximum_size_is_not_mistaken_for_a_full_disk() {
    use std::os::unix::fs::MetadataExt;
    let broker = small().await;
    let reserve = || {
        let path = format!("{}-reserve", broker.file.path().display());
        // The file may have grown with the log, but is not replaced.
        std::fs::metadata(path).unwrap().ino()
    };
    let before = reserve();
    fill(&broker, |n| Envelope { copy: true, ..sized(&n.to_string(), 900) }).await;
    let mut refused = None;
    for delivery in broker.mail.receive(100, Duration::ZERO, None).await.unwrap() {
        let result = Some(vec![b'x'; 3000].into());
        refused = settle(&broker.mail, delivery, Action::Ack { result }).await.pop().or(refused);
    }
    let error = refused.expect("the results must exceed the room").error;
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.to_string().contains("`max_size`") && !error.to_string().contains("disk"), "{error}");
    empty(&broker.mail).await;
    assert_eq!(reserve(), before, "the reserve for a full disk was released");
}

#[tokio::test]
async fn finished_records_are_not_removed_for_new_messages() {
    for bytes in [900, 5000, 60_000] {
        let broker = small().await;
        for n in 0..20 {
            broker.send(sized(&format!("over-{n}"), 20)).await.unwrap();
        }
        assert_eq!(empty(&broker.mail).await.len(), 20);
        // Each message finally has two rows.
        let (confirmed, error) = fill(&broker, |n| publish(&n.to_string(), bytes)).await;
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(!confirmed.is_empty());
        let over = "SELECT count(*) FROM message WHERE phase = 4";
        let over: i64 = broker.file.connection().query_row(over, [], |row| row.get(0)).unwrap();
        assert_eq!(over, 20, "of {bytes} bytes");
    }
}

#[tokio::test]
async fn rows_without_room_do_not_block_later_rows_of_other_programs() {
    let broker = Broker::with(SqliteSettings { max_size: Some(4 << 20), ..settings() }).await;
    let more: Vec<_> = (0..200).map(|n| Subscription::new("orders", format!("more-{n}"))).collect();
    broker.sqlite.provision(&[], &more, OnMissing::Create).await.unwrap();
    let insert = |sql: &str| broker.file.connection().execute(sql, []).unwrap();
    insert(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
         INSERT INTO incoming (topic, body) SELECT 'orders', zeroblob(200) FROM n",
    );
    let to_stock =
        |n: usize| Envelope { to: Address::subscription("orders", "stock"), ..sized(&n.to_string(), 900) };
    fill(&broker, to_stock).await;
    // Room for a few such messages, but not for one with 200 subscriptions.
    assert_eq!(take(&broker.stock, 12).await.len(), 12);
    insert("INSERT INTO incoming (topic, subscription, id) VALUES ('orders', 'mail', 'behind')");
    assert_eq!(seen(&broker.mail).await, ["behind"]);
    let left = "SELECT count(*) FROM incoming WHERE error IS NULL";
    let left: i64 = broker.file.connection().query_row(left, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2500, "the others stay until there is room");
    broker.file.check();
}

#[tokio::test]
async fn large_row_without_room_does_not_block_small_rows() {
    let broker = Broker::with(SqliteSettings { max_size: Some(2 << 20), ..settings() }).await;
    // For the whole topic, which has two subscriptions.
    let insert = |id: &str, bytes: u32| {
        let sql = "INSERT INTO incoming (topic, id, body) VALUES ('orders', ?1, zeroblob(?2))";
        broker.file.connection().execute(sql, (id, bytes)).unwrap();
    };
    insert("never", 1 << 20);
    insert("large", 300_000);
    assert_eq!(seen(&broker.mail).await, ["large"]);
    let reason: String = broker
        .file
        .connection()
        .query_row("SELECT error FROM incoming WHERE id = 'never'", [], |row| row.get(0))
        .unwrap();
    assert!(reason.contains("`max_size`") && reason.contains("ever"), "{reason}");
    broker.file.connection().execute("DELETE FROM incoming", []).unwrap();

    insert("later", 500_000);
    insert("small", 20);
    assert_eq!(seen(&broker.mail).await, ["small"]);
    broker.clock.advance(LEASE).await;
    for consumer in [&broker.stock, &broker.mail] {
        assert_eq!(empty(consumer).await, ["large", "small", "later"], "acknowledged messages make room");
    }
    broker.file.check();
}
