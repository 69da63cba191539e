//! Lateness: the time between the due time of a message and its delivery.

use crate::{
    Scale, ask, connect, envelopes, mail,
    raw::{self, Raw},
    send, server,
};
use dwell_bench::Output;
use dwell_core::{Action, Due, Note, Outcome, Seams, Settle, Timestamp, Transport};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns milliseconds since the epoch, with a finer resolution than Dwell's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0
}

/// Measures the lateness of messages that are due at the given number of milliseconds after a
/// common start. Settles each delivery at once if `settles`.
async fn late(count: usize, settles: bool, after: impl Fn(usize) -> i64) -> Vec<f64> {
    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "").await;
    let consumer = redis.consumer(mail()).await.expect("the subscription exists");
    let start = now() as i64 + 1_000 + count as i64 / 10;
    send(&redis, &envelopes(&seams, count, |n| Due::At(Timestamp(start + after(n))))).await;
    let mut late = vec![];
    while late.len() < count {
        let batch = consumer.receive(1000, Duration::from_secs(5), None).await.expect("the server answers");
        let at = now();
        late.extend(
            batch
                .iter()
                .map(|delivery| at - delivery.due.expect("a delayed message has a due time").0 as f64),
        );
        let settle = batch.into_iter().map(|delivery| {
            let note = Note { outcome: Outcome::Handled, error: None, worker: "b".into(), moved_to: None };
            Settle { delivery, action: Action::ACK, note }
        });
        let (settle, consumer) = (settle.collect::<Vec<_>>(), consumer.clone());
        if settles {
            tokio::spawn(async move { consumer.settle(settle).await });
        }
    }
    late
}

pub(crate) async fn steady(output: &Output, scale: &Scale) {
    let rate = scale.due_per_second;
    let all = late(rate * scale.seconds, true, |n| (n * 1000 / rate) as i64).await;
    output.lateness(&format!("lateness at {rate}/s"), all);
}

/// Measures messages due at one instant, and the bare client that promotes and reads the same
/// number, in turns. Neither settles in the meantime.
pub(crate) async fn burst(output: &Output, scale: &Scale) {
    let (mut all, mut rounds) = (vec![], vec![]);
    for _ in 0..scale.rounds.min(3) {
        let mut late = late(scale.burst, false, |_| 0).await;
        late.sort_by(f64::total_cmp);
        let ours = late[(late.len() - 1) * 99 / 100];
        all.extend(late);
        rounds.push((ours, bare(scale.burst).await));
    }
    output.lateness(&format!("{} due at one instant", scale.burst), all);
    rounds.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (ours, bare) = rounds[rounds.len() / 2];
    output.ratio(&format!("{} due at one instant, p99", scale.burst), ours, bare, bare / ours, "ms");
    let settled = late(scale.burst, true, |_| 0).await;
    output.lateness(&format!("{} due at one instant, settled meanwhile", scale.burst), settled);
}

/// Returns the milliseconds that the bare client takes to promote and read this number of messages.
async fn bare(count: usize) -> f64 {
    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "promoter=elsewhere").await;
    let due = seams.clock.now().after(Duration::from_millis(1_000 + count as u64 / 10));
    send(&redis, &envelopes(&seams, count, |_| Due::At(due))).await;
    let version = ask(&server, &["hget", "dwell:{orders}:topic", "version"]).to_string();
    let bare = Raw::connect(&server).await;
    let mut promote = raw::call(raw::PROMOTE, &version);
    promote.arg(raw::CHUNK);
    seams.clock.sleep_until(Timestamp(due.0 + 5)).await;
    let (start, mut read) = (Instant::now(), 0);
    while raw::list(bare.run(&promote).await)[1] == redis::Value::Int(1) {}
    while read < count {
        // The same number as Dwell delivers at once.
        read += raw::list(raw::list(bare.run(&raw::claim(&version, 100)).await).swap_remove(1)).len();
    }
    start.elapsed().as_secs_f64() * 1000.0
}
