//! Benchmark of receiving and acknowledging in batches.

use crate::{
    Scale,
    disk::Place,
    ours::{self, envelopes},
    raw::Raw,
};
use dwell_bench::Output;
use dwell_core::{Action, Consumer, Note, Outcome, Seams, Settle, Transport};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Number of messages received and acknowledged at a time.
const BATCH: usize = 500;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        rounds.push((ours(scale.messages).await, raw(scale.messages)));
    }
    output.rates(&format!("receive and ack / bare, batches of {BATCH}"), rounds);
}

async fn ours(messages: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let (sqlite, subscription) = ours::open_subscribed(place.path(), &seams).await;
    let producer = sqlite.producer().await.expect("the file is open");
    for sent in producer.send(&envelopes(&seams, messages)).await {
        sent.expect("the send succeeds");
    }
    let consumer = sqlite.consumer(subscription).await.expect("the subscription exists");
    let start = Instant::now();
    tokio::spawn(receive(consumer, messages)).await.expect("all messages are received");
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    sqlite.close().await.expect("closing the file succeeds");
    rate
}

pub(crate) async fn receive(consumer: Arc<dyn Consumer>, mut left: usize) {
    while left > 0 {
        let received = consumer.receive(BATCH.min(left), Duration::from_secs(10), None).await;
        let received = received.expect("the file is open");
        left -= received.len();
        let note = Note { outcome: Outcome::Handled, error: None, worker: "bench".into(), moved_to: None };
        let settle = |delivery| Settle { delivery, action: Action::ACK, note: note.clone() };
        let unsettled = consumer.settle(received.into_iter().map(settle).collect()).await;
        assert!(unsettled.is_empty(), "no lease expires before its settlement");
    }
}

fn raw(messages: usize) -> f64 {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let mut raw = Raw::open(place.path());
    for group in envelopes(&seams, messages).chunks(BATCH) {
        raw.insert(group, seams.clock.now());
    }
    let start = Instant::now();
    let mut left = messages;
    while left > 0 {
        let leased = raw.lease(BATCH, seams.clock.now());
        left -= leased.len();
        raw.ack(&leased, seams.clock.now());
    }
    messages as f64 / start.elapsed().as_secs_f64()
}
