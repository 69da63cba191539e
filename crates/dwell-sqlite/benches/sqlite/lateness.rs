//! How late messages are handled that were due at a time.

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

/// What a subscription asks for at a time: for who cares about a burst, and without a word about it.
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
    output.figure("what the disk takes for one page, median", median(disk), "ms");
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

/// Milliseconds since the epoch, finer than our clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0
}

/// Notes how late each message is.
struct Late {
    seen: Mutex<Vec<f64>>,
    expected: usize,
    done: Notify,
}

impl Handler for Late {
    fn begin(&self, _: Message, context: Context, _: &mut std::task::Context<'_>) -> Begun {
        let due = context.due.expect("SQLite knows when a message was due");
        let late = now() - due.0 as f64;
        let mut seen = self.seen.lock().expect("nobody panics here");
        seen.push(late);
        if seen.len() == self.expected {
            self.done.notify_one();
        }
        Begun::Done(Verdict::ACK)
    }
}

/// So many messages, each due a given number of milliseconds after a start that is soon.
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
    engine.shutdown().await.expect("the file closes");
    std::mem::take(&mut late.seen.lock().expect("nobody panics here"))
}
