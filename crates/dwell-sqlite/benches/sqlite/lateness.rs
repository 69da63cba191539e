//! Benchmark of the lateness of delayed messages.

use crate::{
    Scale,
    disk::{Place, syncs},
    ours::{self, envelope, send},
};
use dwell_bench::{Output, median};
use dwell_core::{Due, Message, Seams, Timestamp};
use dwell_engine::{Begun, Context, Handler, Verdict};
use std::{
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::sync::Notify;

const ROUNDS: usize = 3;
const SYNCS: usize = 200;

/// Batch size of the subscription: one for large bursts, and the default.
const BATCHES: [usize; 2] = [ours::LARGE_BATCH, ours::DEFAULT_BATCH];

pub(crate) async fn steady(output: &Output, scale: &Scale) {
    let rate = scale.due_per_second as i64;
    let total = rate * scale.seconds as i64;
    let mut disk = vec![];
    let mut all = BATCHES.map(|batch| (batch, vec![]));
    for _ in 0..ROUNDS.min(scale.rounds) {
        for (batch, all) in &mut all {
            disk.extend(syncs(SYNCS));
            all.extend(late(*batch, total as usize, |n| n as i64 * 1000 / rate).await);
        }
    }
    disk.extend(syncs(SYNCS));
    output.figure("sync of one page, median", median(disk), "ms");
    for (batch, all) in all {
        output.lateness(&format!("lateness at {rate}/s, `batch` {batch}"), all);
    }
}

pub(crate) async fn burst(output: &Output, scale: &Scale) {
    for batch in BATCHES {
        let mut all = vec![];
        for _ in 0..ROUNDS.min(scale.rounds) {
            all.extend(late(batch, scale.burst, |_| 0).await);
        }
        output.lateness(&format!("{} due at one instant, `batch` {batch}", scale.burst), all);
    }
}

/// Returns milliseconds since the epoch, more precisely than the transport's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the system clock is after 1970").as_secs_f64()
        * 1000.0
}

/// Handler that records the lateness of each message.
struct Late {
    seen: Mutex<Vec<f64>>,
    expected: usize,
    done: Notify,
}

impl Handler for Late {
    fn begin(&self, _: Message, context: Context, _: &mut std::task::Context<'_>) -> Begun {
        let due = context.due.expect("SQLite provides due times");
        let late = now() - due.0 as f64;
        let mut seen = self.seen.lock().expect("the lock is not poisoned");
        seen.push(late);
        if seen.len() == self.expected {
            self.done.notify_one();
        }
        Begun::Done(Verdict::ACK)
    }
}

/// Schedules this number of messages, each at an offset in milliseconds from a start in the near
/// future, and returns their lateness.
async fn late(batch: usize, expected: usize, due: impl Fn(usize) -> i64) -> Vec<f64> {
    let (place, seams) = (Place::new(), Seams::system("bench"));
    let seen = Mutex::new(Vec::with_capacity(expected));
    let late = Arc::new(Late { seen, expected, done: Notify::new() });
    let engine = ours::engine(place.path(), &seams, late.clone(), batch).await;
    let start = now() as i64 + 2_000;
    let all: Vec<_> = (0..expected).map(|n| envelope(&seams, Due::At(Timestamp(start + due(n))))).collect();
    for batch in all.chunks(1000) {
        send(&engine, batch).await;
    }
    late.done.notified().await;
    engine.shutdown().await.expect("closing the file succeeds");
    std::mem::take(&mut late.seen.lock().expect("the lock is not poisoned"))
}
