//! Throughput from send to handled, compared with a bounded channel that moves the same struct
//! between two tasks.

use crate::Scale;
use bytes::Bytes;
use dwell_bench::{Output, median};
use dwell_core::{Address, Envelope, Message, Seams};
use dwell_engine::{
    Begun, Context, Engine, Handler, SubscriptionSettings, Verdict, Work,
    memory::{Memory, MemorySettings},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};
use tokio::sync::{Notify, mpsc};

const BATCH: usize = 100;
const CAPACITY: usize = 10_000;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let (mut ours, mut raw) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        ours.push(engine(scale.messages).await);
        raw.push(channel(scale.messages).await);
    }
    let (ours, raw) = (median(ours), median(raw));
    output.ratio(
        "send, pump, handled (100 bytes, monitor on) / channel",
        ours,
        raw,
        ours / raw,
        "messages/s",
    );
}

fn envelope(seams: &Seams, body: &Bytes) -> Envelope {
    let message = Message::new(seams.ids.next(), "bench.message", body.clone());
    Envelope::new(Address::topic("bench"), message)
}

struct Count {
    left: AtomicUsize,
    done: Notify,
}

impl Handler for Count {
    fn begin(&self, _: Message, _: Context, _: &mut std::task::Context<'_>) -> Begun {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
        Begun::Done(Verdict::ACK)
    }
}

async fn engine(messages: usize) -> f64 {
    let seams = Seams::system("bench");
    let settings = MemorySettings { capacity: CAPACITY, ..MemorySettings::default() };
    let memory = Arc::new(Memory::new(seams.clone(), settings));
    let engine = Engine::builder(memory, seams.clone()).build().await.expect("memory needs no store");
    let handler = Arc::new(Count { left: AtomicUsize::new(messages), done: Notify::new() });
    let settings = SubscriptionSettings { batch: 200, ..SubscriptionSettings::new("bench", "bench") };
    engine.subscribe(settings, Work::Async(handler.clone())).await.expect("the settings are valid");
    let body = Bytes::from(vec![b'x'; 100]);
    let start = Instant::now();
    let sender = tokio::spawn({
        let engine = engine.clone();
        async move {
            for _ in 0..messages / BATCH {
                let mut batch: Vec<_> = (0..BATCH).map(|_| envelope(&seams, &body)).collect();
                // The queue is bounded, so refused messages are sent again.
                while !batch.is_empty() {
                    let results = engine.send(&batch).await;
                    let mut results = results.into_iter();
                    batch.retain(|_| results.next().is_none_or(|result| result.is_err()));
                    if !batch.is_empty() {
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    });
    handler.done.notified().await;
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    sender.await.expect("the sender finishes");
    engine.shutdown().await.expect("memory closes");
    rate
}

async fn channel(messages: usize) -> f64 {
    let seams = Seams::system("bench");
    let (send, mut receive) = mpsc::channel::<Envelope>(CAPACITY);
    let body = Bytes::from(vec![b'x'; 100]);
    let start = Instant::now();
    let sender = tokio::spawn(async move {
        for _ in 0..messages {
            send.send(envelope(&seams, &body)).await.expect("the receiver exists");
        }
    });
    let mut received = 0;
    while receive.recv().await.is_some() {
        received += 1;
    }
    assert_eq!(received, messages);
    let rate = messages as f64 / start.elapsed().as_secs_f64();
    sender.await.expect("the sender finishes");
    rate
}
