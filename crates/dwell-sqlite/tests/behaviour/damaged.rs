//! Damaged rows: each is delivered as one bad message with its problem, and others are not
//! affected.

use super::*;
use dwell_core::RecordQuery;

/// Unreadable values in columns that are read on every delivery.
const DAMAGE: [(&str, &str); 20] = [
    ("home", "'x'"),
    ("step", "'x'"),
    ("due", "'soon'"),
    ("deliveries", "-1"),
    ("deliveries", "'often'"),
    ("handled", "'x'"),
    ("handled", "-1"),
    ("failed", "5000000000"),
    ("headers", "'{'"),
    ("headers", "x'ff'"),
    ("headers", "CAST(x'ff' AS TEXT)"),
    ("id", "x'ff'"),
    ("id", "CAST(x'ff' AS TEXT)"),
    ("type", "x'ff'"),
    ("content_type", "CAST(x'ff' AS TEXT)"),
    ("sent_at", "'x'"),
    ("problem", "x'ff'"),
    ("rank", "'x'"),
    ("body", "NULL"),
    ("handled", "1.5"),
];

/// Unreadable values in columns that are read later or not at all.
const OTHERS: [(&str, &str); 15] = [
    ("state", "'x'"),
    ("state", "99"),
    ("topic", "'x'"),
    ("topic", "999"),
    ("born", "'x'"),
    ("created_at", "'x'"),
    ("updated_at", "'x'"),
    ("changed_by", "x'ff'"),
    ("worker", "x'ff'"),
    ("error", "x'ff'"),
    ("error_step", "'x'"),
    ("once", "'x'"),
    ("content", "x'00'"),
    ("was_part", "'x'"),
    ("was_due", "'x'"),
];

const ALL: [&str; 3] = ["a", "b", "c"];

async fn with_three(due: Due) -> Broker {
    let broker = Broker::new().await;
    for id in ALL {
        let to = Address::subscription("orders", "mail");
        // One message is a copy, which is written in a different way.
        broker.send(Envelope { to, copy: id == "c", ..order(id) }.due(due)).await.unwrap();
    }
    broker
}

fn damage(broker: &Broker, column: &str, value: &str) {
    let sql = format!("UPDATE message SET {column} = {value} WHERE id = 'b'");
    assert_eq!(broker.file.connection().execute(&sql, []).unwrap(), 1);
}

/// Checks that all three are delivered, the damaged one with its problem if `has_problem`, and can
/// be settled.
async fn check_all_delivered(broker: &Broker, (column, value): (&str, &str), has_problem: bool) {
    let shown = format!("{column} = {value}");
    let mut deliveries = vec![];
    for _ in 0..3 {
        deliveries.extend(broker.mail.receive(100, Duration::ZERO, None).await.expect(&shown));
    }
    assert_eq!(deliveries.len(), 3, "{shown}: {:?}", ids(&deliveries));
    for delivery in deliveries {
        let is_sound = ["a", "c"].contains(&&*delivery.message.id.0);
        match &delivery.problem {
            None => assert!(is_sound || !has_problem, "{shown}: the damaged message has no problem"),
            Some(problem) => {
                assert!(!is_sound, "{shown}: {problem}");
                let named = if column == "body" { "body is missing" } else { column };
                assert!(problem.contains(named) && problem.contains("row "), "{shown}: {problem}");
            }
        }
        ack(&broker.mail, delivery).await;
    }
    assert_eq!(seen(&broker.mail).await, [""; 0], "{shown}");
    assert!(broker.held().is_empty(), "{shown}: {:?}", broker.held());
}

#[tokio::test]
async fn damaged_ready_row_is_one_bad_message() {
    for damaged in DAMAGE {
        let broker = with_three(Due::NOW).await;
        damage(&broker, damaged.0, damaged.1);
        check_all_delivered(&broker, damaged, true).await;
        broker.file.check();
    }
    for damaged in OTHERS {
        let broker = with_three(Due::NOW).await;
        damage(&broker, damaged.0, damaged.1);
        check_all_delivered(&broker, damaged, false).await;
    }
}

#[tokio::test]
async fn damaged_pending_row_is_one_bad_message() {
    let is_relevant = |(column, _): &(&str, &str)| !["rank", "topic"].contains(column);
    for damaged in DAMAGE.into_iter().chain(OTHERS).filter(is_relevant) {
        let broker = with_three(after(SECOND)).await;
        damage(&broker, damaged.0, damaged.1);
        // The damaged row is listed, and does not prevent others from being listed.
        let ledger = broker.sqlite.ledger().unwrap();
        let listed = ledger.list(RecordQuery { limit: 10, ..RecordQuery::default() }).await;
        assert_eq!(listed.unwrap().items.len(), 3, "{damaged:?}");
        broker.clock.advance(SECOND).await;
        check_all_delivered(&broker, damaged, false).await;
    }
}

#[tokio::test]
async fn damaged_leased_row_is_one_bad_message() {
    for damaged in DAMAGE.into_iter().chain(OTHERS).chain([("holder", "'x'")]) {
        let broker = with_three(Due::NOW).await;
        assert_eq!(receive(&broker.mail).await.len(), 3);
        damage(&broker, damaged.0, damaged.1);
        broker.clock.advance(LEASE).await;
        check_all_delivered(&broker, damaged, false).await;
    }
}

#[tokio::test]
async fn damaged_lease_counts_as_expired() {
    let broker = with_three(Due::NOW).await;
    let deliveries = receive(&broker.mail).await;
    damage(&broker, "lease_until", "'x'");
    for delivery in deliveries.into_iter().filter(|delivery| &*delivery.message.id.0 != "b") {
        ack(&broker.mail, delivery).await;
    }
    let b = one(&broker.mail).await;
    assert!(b.problem.as_ref().is_some_and(|problem| problem.contains("lease_until")), "{:?}", b.problem);
    ack(&broker.mail, b).await;
    broker.file.check();
}

#[tokio::test]
async fn unreachable_rows_do_not_block_others() {
    for (column, value) in [("place", "'x'"), ("place", "999"), ("phase", "'x'"), ("phase", "9")] {
        let broker = with_three(Due::NOW).await;
        damage(&broker, column, value);
        assert_eq!(seen(&broker.mail).await, ["a", "c"], "{column} = {value}");
    }
}
