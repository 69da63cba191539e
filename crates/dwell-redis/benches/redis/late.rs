//! How late messages are handed out that were due at a time.

use crate::{
    Scale, ask, connect, envelopes, mail,
    raw::{self, Raw},
    send, server,
};
use dwell_bench::Output;
use dwell_core::{Action, Due, Note, Outcome, Seams, Settle, Timestamp, Transport};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch, finer than our clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0
}

/// So many messages, each due a given number of milliseconds after a start that is soon.
async fn late(count: usize, after: impl Fn(usize) -> i64) -> Vec<f64> {
    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "").await;
    let consumer = redis.consumer(mail()).await.expect("it is there");
    let start = now() as i64 + 1_000 + count as i64 / 10;
    send(&redis, &envelopes(&seams, count, |n| Due::At(Timestamp(start + after(n))))).await;
    let mut late = vec![];
    while late.len() < count {
        let batch = consumer.receive(1000, Duration::from_secs(5), None).await.expect("the server answers");
        let at = now();
        late.extend(batch.iter().map(|delivery| at - delivery.due.expect("it waited").0 as f64));
        let settle = batch.into_iter().map(|delivery| {
            let note = Note { outcome: Outcome::Handled, error: None, worker: "b".into(), moved_to: None };
            Settle { delivery, action: Action::ACK, note }
        });
        let (settle, consumer) = (settle.collect::<Vec<_>>(), consumer.clone());
        tokio::spawn(async move { consumer.settle(settle).await });
    }
    late
}

pub(crate) async fn steady(output: &Output, scale: &Scale) {
    let rate = scale.due_per_second;
    let all = late(rate * scale.seconds, |n| (n * 1000 / rate) as i64).await;
    output.lateness(&format!("lateness at {rate}/s"), all);
}

/// All at one instant, beside the bare client that promotes and reads as many.
pub(crate) async fn burst(output: &Output, scale: &Scale) {
    let mut all = late(scale.burst, |_| 0).await;
    all.sort_by(f64::total_cmp);
    let ours = all[(all.len() - 1) * 99 / 100];
    output.lateness(&format!("{} due at one instant", scale.burst), all);

    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "promoter=elsewhere").await;
    let due = seams.clock.now().after(Duration::from_millis(1_000 + scale.burst as u64 / 10));
    send(&redis, &envelopes(&seams, scale.burst, |_| Due::At(due))).await;
    let version = ask(&server, &["hget", "dwell:{orders}:topic", "version"]).to_string();
    let bare = Raw::connect(&server).await;
    let mut promote = raw::call(raw::PROMOTE, &version);
    promote.arg(raw::CHUNK);
    seams.clock.sleep_until(Timestamp(due.0 + 5)).await;
    let (start, mut read) = (Instant::now(), 0);
    while raw::list(bare.run(&promote).await)[1] == redis::Value::Int(1) {}
    while read < scale.burst {
        read += raw::list(raw::list(bare.run(&raw::claim(&version, 1000)).await).swap_remove(1)).len();
    }
    let bare = start.elapsed().as_secs_f64() * 1000.0;
    output.ratio(&format!("{} due at one instant, p99", scale.burst), ours, bare, bare / ours, "ms");
}
