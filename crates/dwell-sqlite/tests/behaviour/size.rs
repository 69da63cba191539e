//! A file that has reached its `max_size`: whatever it is full of can be looked at, handed out and settled.

use super::faults::{drain, fill, sized};
use super::*;
use dwell_core::{OnConflict, RecordQuery};

const SIZES: [usize; 3] = [20, 300, 900];

/// A broker whose file is small, and which keeps records of what is over.
async fn small() -> Broker {
    Broker::with(SqliteSettings { max_size: Some(2 << 20), done: SECOND * 3600, ..settings() }).await
}

/// Handles all that is there for one subscription, as far as there is room for what the others have not handled yet.
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

/// Handles up to so many, one settlement at a time.
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
async fn publishes_that_waited_in_a_full_file_come_to_all_of_their_subscriptions() {
    for bytes in SIZES {
        for in_turns in [true, false] {
            let broker = small().await;
            let make = |n: usize| publish(&n.to_string(), bytes).due(after(SECOND));
            let (confirmed, error) = fill(&broker, make).await;
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert!(confirmed.len() > 200, "{}", confirmed.len());
            broker.clock.advance(SECOND * 2).await;

            // Who looks at it sees it, whatever cannot be moved on.
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
async fn what_waits_for_one_subscription_comes_to_it_past_any_number_of_publishes_that_have_no_room() {
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
async fn ids_that_were_chosen_are_still_known_when_their_records_had_to_make_room() {
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
async fn a_file_that_has_reached_its_size_is_not_taken_for_a_full_disk() {
    use std::os::unix::fs::MetadataExt;
    let broker = small().await;
    let reserve = || {
        let path = format!("{}-reserve", broker.file.path().display());
        // It may have grown with the log.
        std::fs::metadata(path).unwrap().ino()
    };
    let before = reserve();
    fill(&broker, |n| Envelope { copy: true, ..sized(&n.to_string(), 900) }).await;
    let mut refused = None;
    for delivery in broker.mail.receive(100, Duration::ZERO, None).await.unwrap() {
        let result = Some(vec![b'x'; 3000].into());
        refused = settle(&broker.mail, delivery, Action::Ack { result }).await.pop().or(refused);
    }
    let error = refused.expect("there is no room for so many results").error;
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(error.to_string().contains("`max_size`") && !error.to_string().contains("disk"), "{error}");
    empty(&broker.mail).await;
    assert_eq!(reserve(), before, "what is kept for a full disk was let go");
}

#[tokio::test]
async fn nothing_that_is_over_makes_way_for_what_users_send() {
    for bytes in [900, 5000, 60_000] {
        let broker = small().await;
        for n in 0..20 {
            broker.send(sized(&format!("over-{n}"), 20)).await.unwrap();
        }
        assert_eq!(empty(&broker.mail).await.len(), 20);
        // Each is there twice in the end.
        let (confirmed, error) = fill(&broker, |n| publish(&n.to_string(), bytes)).await;
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        assert!(!confirmed.is_empty());
        let over = "SELECT count(*) FROM message WHERE phase = 4";
        let over: i64 = broker.file.connection().query_row(over, [], |row| row.get(0)).unwrap();
        assert_eq!(over, 20, "of {bytes} bytes");
    }
}

#[tokio::test]
async fn however_many_rows_of_other_programs_have_no_room_those_behind_them_are_taken_in() {
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
    // Room for a few such as these, and for none of which each of 200 subscriptions gets one.
    assert_eq!(take(&broker.stock, 12).await.len(), 12);
    insert("INSERT INTO incoming (topic, subscription, id) VALUES ('orders', 'mail', 'behind')");
    assert_eq!(seen(&broker.mail).await, ["behind"]);
    let left = "SELECT count(*) FROM incoming WHERE error IS NULL";
    let left: i64 = broker.file.connection().query_row(left, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2500, "they wait until there is room");
    broker.file.check();
}

#[tokio::test]
async fn what_has_no_room_in_a_file_holds_up_nothing_that_another_program_put_there() {
    let broker = Broker::with(SqliteSettings { max_size: Some(2 << 20), ..settings() }).await;
    // For all of the topic, which has two subscriptions.
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
        assert_eq!(empty(consumer).await, ["large", "small", "later"], "there is room by and by");
    }
    broker.file.check();
}
