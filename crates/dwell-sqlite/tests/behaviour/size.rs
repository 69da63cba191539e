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
