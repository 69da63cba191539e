//! The same messages as jobs and without jobs, with the same numbers of senders and the same
//! batches.

use dwell::prelude::*;
use dwell_core::{
    Action, Address, Envelope, Message, Note, OnMissing, Outcome, Seams, Settle, Topic, Transport,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// Size of a sent batch.
const SENT: usize = 100;
/// Size of a received batch.
const RECEIVED: usize = 500;
/// Number of concurrent senders.
const SENDERS: usize = 4;

/// A message of 100 bytes in JSON.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "bench.work")]
struct Work {
    order: u64,
    cents: u32,
    customer: String,
}

impl Work {
    fn new(number: usize) -> Self {
        Self { order: 1_000_000_000 + number as u64, cents: 19_999, customer: "c".repeat(52) }
    }
}

#[derive(Clone)]
struct Left(Arc<(AtomicUsize, Notify)>);

impl Left {
    fn new(messages: usize) -> Self {
        Self(Arc::new((AtomicUsize::new(messages), Notify::new())))
    }

    fn handled(&self) {
        if self.0.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.1.notify_one();
        }
    }

    async fn none(&self) {
        self.0.1.notified().await;
    }
}

async fn work(job: Work, State(left): State<Left>) -> Result<u64, Failure> {
    left.handled();
    Ok(job.order)
}

/// A job type that is never submitted.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "bench.rest")]
struct Rest;

async fn another(_: Rest) -> Result<(), Failure> {
    Ok(())
}

async fn command(_: Work, State(left): State<Left>) -> Result<(), Failure> {
    left.handled();
    Ok(())
}

/// The numbers that one sender sends, in batches.
fn batches(sender: usize, messages: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let firsts = (sender * SENT..messages).step_by(SENDERS * SENT);
    firsts.map(move |first| first..messages.min(first + SENT))
}

/// Jobs per second, from submit to completion.
pub(crate) async fn jobs(url: &str, messages: usize) -> f64 {
    jobs_under(|_| None, url, messages).await
}

/// The same with chosen ids, which are looked up first.
pub(crate) async fn jobs_under(id: fn(usize) -> Option<String>, url: &str, messages: usize) -> f64 {
    let left = Left::new(messages);
    let wiring = Bus::builder().state(left.clone());
    let wiring = wiring.job_with(|queue| queue.with(|settings| settings.batch = RECEIVED), work);
    // With a single job type, ids are not looked up.
    let wiring = if id(0).is_some() { wiring.job(another) } else { wiring };
    let bus = wiring.start(url).await.expect("the store can be opened");
    let jobs = bus.jobs().expect("it has a ledger");
    let start = Instant::now();
    for sender in 0..SENDERS {
        let jobs = jobs.clone();
        tokio::spawn(async move {
            for batch in batches(sender, messages) {
                let batch = batch.map(|number| jobs.submit(Work::new(number)).id_if_given(id(number)));
                for submitted in jobs.submit_all(batch).await {
                    submitted.expect("there is room");
                }
            }
        });
    }
    left.none().await;
    // The last jobs have run; they are settled when the bus has stopped.
    bus.shutdown().await.expect("the store closes");
    messages as f64 / start.elapsed().as_secs_f64()
}

/// Messages per second, as commands instead of jobs.
pub(crate) async fn commands(url: &str, messages: usize) -> f64 {
    let left = Left::new(messages);
    let queue = Subscription::named("bench").with(|settings| settings.batch = RECEIVED);
    let wiring = Bus::builder().state(left.clone()).handle_as(queue, command);
    let bus = wiring.start(url).await.expect("the store can be opened");
    let start = Instant::now();
    for sender in 0..SENDERS {
        let bus = bus.clone();
        tokio::spawn(async move {
            for batch in batches(sender, messages) {
                let batch = batch.map(|number| bus.send(Work::new(number)));
                for sent in bus.send_all(batch).await {
                    sent.expect("there is room");
                }
            }
        });
    }
    left.none().await;
    bus.shutdown().await.expect("the store closes");
    messages as f64 / start.elapsed().as_secs_f64()
}

/// Messages per second from send to ack, on the transport alone.
pub(crate) async fn transport(transport: Arc<dyn Transport>, seams: &Seams, messages: usize) -> f64 {
    let subscription = dwell_core::Subscription::new("bench", "bench");
    let (topics, subscriptions) = ([Topic::named("bench")], [subscription.clone()]);
    transport.provision(&topics, &subscriptions, OnMissing::Create).await.expect("the store can be written");
    let producer = transport.producer().await.expect("the store is open");
    let consumer = transport.consumer(subscription).await.expect("it was provisioned");
    let body = serde_json::to_vec(&Work::new(0)).expect("it is plain data");
    let start = Instant::now();
    for sender in 0..SENDERS {
        let (producer, seams, body) = (producer.clone(), seams.clone(), body.clone());
        tokio::spawn(async move {
            for batch in batches(sender, messages) {
                let envelope = |_| {
                    let message = Message::new(seams.ids.next(), "bench.work", body.clone());
                    Envelope::new(Address::topic("bench"), message)
                };
                let batch: Vec<_> = batch.map(envelope).collect();
                for sent in producer.send(&batch).await {
                    sent.expect("there is room");
                }
            }
        });
    }
    let receiver = tokio::spawn(async move {
        let mut left = messages;
        while left > 0 {
            let received = consumer.receive(RECEIVED, Duration::from_secs(10), None).await;
            let received = received.expect("the store is open");
            left -= received.len();
            let note =
                Note { outcome: Outcome::Handled, error: None, worker: "bench".into(), moved_to: None };
            let settle = |delivery| Settle { delivery, action: Action::ACK, note: note.clone() };
            let unsettled = consumer.settle(received.into_iter().map(settle).collect()).await;
            assert!(unsettled.is_empty(), "the leases last longer than this");
        }
    });
    receiver.await.expect("nobody panics");
    transport.close().await.expect("the store closes");
    messages as f64 / start.elapsed().as_secs_f64()
}
