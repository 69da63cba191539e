//! Pages of the ledger while their records change.

use super::*;
use dwell_core::{RecordQuery, State};
use std::sync::atomic::{AtomicBool, Ordering};

/// Receives and releases a message in a loop until `is_over` is set.
fn pass_on(consumer: Arc<dyn Consumer>, is_over: Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while !is_over.load(Ordering::Relaxed) {
            let deliveries = consumer.receive(1, Duration::ZERO, None).await.unwrap();
            release_all(&consumer, deliveries).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_alternating_between_two_states_is_on_every_page_of_both() {
    let broker = Broker::new().await;
    broker.send(Envelope { to: Address::subscription("orders", "mail"), ..order("a") }).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let passing = pass_on(broker.mail.clone(), is_over.clone());
    let states = vec![State::Ready, State::Processing];
    let query = RecordQuery { states, limit: 10, ..RecordQuery::default() };
    let ledger = broker.sqlite.ledger().unwrap();
    let mut found = Vec::new();
    for _ in 0..500 {
        found.push(ledger.list(query.clone()).await.unwrap().items.len());
    }
    is_over.store(true, Ordering::Relaxed);
    passing.await.unwrap();
    assert_eq!(found, [1; 500]);
}
