//! Lateness of messages with a due time, compared with tokio's `DelayQueue`.

use crate::Scale;
use dwell_bench::Output;
use dwell_core::{Address, Due, Envelope, Message, Seams, SystemClock, Timestamp, Transport};
use dwell_engine::{
    Begun, Context, Engine, Handler, SubscriptionSettings, Verdict, Work,
    memory::{Memory, MemorySettings},
};
use futures_util::StreamExt;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::Notify;
use tokio_util::time::DelayQueue;

const ROUNDS: usize = 3;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let rate = scale.due_per_second;
    // Interleaved, so that other load on the machine affects both.
    let (mut ours, mut raw) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        ours.extend(steady(scale).await);
        raw.extend(delay_queue(scale).await);
    }
    output.lateness(&format!("lateness at {rate}/s, ours"), ours);
    output.lateness(&format!("lateness at {rate}/s, DelayQueue"), raw);
    let (immediate, burst) = burst(scale).await;
    output.lateness(&format!("immediate messages while {} are due at one instant", scale.burst), immediate);
    output.lateness(&format!("{} due at one instant", scale.burst), burst);
}

/// Returns milliseconds since the epoch, with a higher resolution than our clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0
}

/// Records the lateness of each message.
struct Late {
    seen: Mutex<Vec<f64>>,
    expected: usize,
    done: Notify,
}

impl Late {
    fn expecting(expected: usize) -> Arc<Self> {
        Arc::new(Self {
            seen: Mutex::new(Vec::with_capacity(expected.min(1 << 20))),
            expected,
            done: Notify::new(),
        })
    }

    fn note(&self, late: f64) {
        let mut seen = self.seen.lock().expect("no thread panics");
        seen.push(late);
        if seen.len() == self.expected {
            self.done.notify_one();
        }
    }

    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.seen.lock().expect("no thread panics"))
    }
}

impl Handler for Late {
    fn begin(&self, _: Message, context: Context, _: &mut std::task::Context<'_>) -> Begun {
        let due = context.due.expect("memory reports due times");
        self.note(now() - due.0 as f64);
        Begun::Done(Verdict::ACK)
    }
}

async fn engine(subscriptions: &[(&'static str, Arc<Late>)]) -> (Engine, Seams) {
    let seams = Seams::new(Arc::new(SystemClock::new()), Arc::new(dwell_core::SeededRandom::new(1)), "bench");
    let settings = MemorySettings { capacity: usize::MAX / 2, ..MemorySettings::default() };
    let memory: Arc<dyn Transport> = Arc::new(Memory::new(seams.clone(), settings));
    let engine = Engine::builder(memory, seams.clone()).build().await.expect("memory needs no store");
    for (topic, late) in subscriptions {
        let settings = SubscriptionSettings { batch: 1000, ..SubscriptionSettings::new(*topic, *topic) };
        engine.subscribe(settings, Work::Async(late.clone())).await.expect("the settings are valid");
    }
    (engine, seams)
}

fn message(seams: &Seams, topic: &str, due: Due) -> Envelope {
    Envelope::new(Address::topic(topic), Message::new(seams.ids.next(), "bench.message", "x")).due(due)
}

/// Sends in batches, and checks each result.
async fn send(engine: &Engine, batch: &[Envelope]) {
    for result in engine.send(batch).await {
        result.expect("the queue has room");
    }
}

/// Returns the due times of a steady load: spread evenly over some seconds, starting at `start`.
fn dues(scale: &Scale, start: i64) -> impl Iterator<Item = Timestamp> {
    let total = scale.due_per_second * scale.seconds;
    let per_second = scale.due_per_second as i64;
    (0..total as i64).map(move |n| Timestamp(start + n * 1000 / per_second))
}

async fn steady(scale: &Scale) -> Vec<f64> {
    let late = Late::expecting(scale.due_per_second * scale.seconds);
    let (engine, seams) = engine(&[("steady", late.clone())]).await;
    let start = now() as i64 + 2_000;
    let all: Vec<_> = dues(scale, start).map(|due| message(&seams, "steady", Due::At(due))).collect();
    for batch in all.chunks(1000) {
        send(&engine, batch).await;
    }
    late.done.notified().await;
    engine.shutdown().await.expect("memory closes");
    late.take()
}

async fn delay_queue(scale: &Scale) -> Vec<f64> {
    let mut queue = DelayQueue::new();
    let start = now() as i64 + 2_000;
    let (base_wall, base) = (now(), Instant::now());
    for due in dues(scale, start) {
        let at = base + Duration::from_secs_f64((due.0 as f64 - base_wall) / 1000.0);
        queue.insert_at(due, at.into());
    }
    let mut late = Vec::with_capacity(scale.due_per_second * scale.seconds);
    while let Some(expired) = queue.next().await {
        late.push(now() - expired.into_inner().0 as f64);
    }
    late
}

/// Sends many messages that are due at one instant, and meanwhile one immediate message per
/// millisecond to another topic.
async fn burst(scale: &Scale) -> (Vec<f64>, Vec<f64>) {
    let many = Late::expecting(scale.burst);
    let immediate = Late::expecting(usize::MAX);
    let (engine, seams) = engine(&[("burst", many.clone()), ("immediate", immediate.clone())]).await;
    let due = Timestamp(now() as i64 + 2_000 + scale.burst as i64 / 500);
    let all: Vec<_> = (0..scale.burst).map(|_| message(&seams, "burst", Due::At(due))).collect();
    for batch in all.chunks(1000) {
        send(&engine, batch).await;
    }
    drop(all);
    let sender = tokio::spawn({
        let engine = engine.clone();
        async move {
            tokio::time::sleep(Duration::from_secs_f64((due.0 as f64 - now()).max(0.0) / 1000.0)).await;
            loop {
                send(&engine, &[message(&seams, "immediate", Due::NOW)]).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    many.done.notified().await;
    sender.abort();
    let late = (immediate.take(), many.take());
    engine.stop_now();
    late
}
