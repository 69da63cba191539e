//! Throughput of sending, receiving and promoting, in messages per second.

use crate::{
    Scale, ask, connect, envelopes, mail,
    raw::{self, Raw},
    send, server,
};
use dwell_bench::Output;
use dwell_conformance::servers::redis::RedisServer;
use dwell_core::{Action, Due, Note, Outcome, Seams, Settle, Timestamp, Transport, TransportUrl};
use futures_util::future::join_all;
use std::time::{Duration, Instant};

/// Returns the version of the topic after provisioning.
fn version(server: &RedisServer) -> String {
    ask(server, &["hget", "dwell:{orders}:topic", "version"]).to_string()
}

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

pub(crate) async fn sends(output: &Output, scale: &Scale) {
    let seams = Seams::system("bench");
    for tasks in [1, 4] {
        let mut rounds = vec![];
        for _ in 0..scale.rounds {
            let server = server();
            let redis = connect(&server, "").await;
            let all = envelopes(&seams, scale.messages, |_| Due::NOW);
            let start = Instant::now();
            join_all(all.chunks(all.len() / tasks).map(|part| send(&redis, part))).await;
            let ours = per_second(all.len(), start);

            let bare = Raw::connect(&server).await;
            let all = envelopes(&seams, scale.messages, |_| Due::NOW);
            let commands = raw::accepts(&version(&server), &all);
            let start = Instant::now();
            let parts = commands.chunks(commands.len().div_ceil(tasks)).map(|part| {
                let bare = bare.clone();
                // As in Dwell, a thousand messages are in flight at once.
                async move {
                    for together in part.chunks(1000 / raw::CHUNK) {
                        join_all(together.iter().map(|command| bare.run(command))).await;
                    }
                }
            });
            join_all(parts).await;
            rounds.push((ours, per_second(all.len(), start)));
        }
        output.rates(&format!("send, batches of 1000, {tasks} at once"), rounds);
    }
}

pub(crate) async fn receives(output: &Output, scale: &Scale) {
    const BATCH: usize = 100;
    let seams = Seams::system("bench");
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        let server = server();
        let redis = connect(&server, "").await;
        send(&redis, &envelopes(&seams, scale.messages, |_| Due::NOW)).await;
        let consumer = redis.consumer(mail()).await.expect("the subscription exists");
        let (start, mut done) = (Instant::now(), 0);
        while done < scale.messages {
            let batch =
                consumer.receive(BATCH, Duration::from_secs(1), None).await.expect("the server answers");
            done += batch.len();
            let settle = batch.into_iter().map(|delivery| {
                let note =
                    Note { outcome: Outcome::Handled, error: None, worker: "b".into(), moved_to: None };
                Settle { delivery, action: Action::ACK, note }
            });
            assert!(consumer.settle(settle.collect()).await.is_empty());
        }
        let ours = per_second(done, start);

        send(&redis, &envelopes(&seams, scale.messages, |_| Due::NOW)).await;
        let (bare, version) = (Raw::connect(&server).await, version(&server));
        let (start, mut done) = (Instant::now(), 0);
        while done < scale.messages {
            let claimed = bare.run(&raw::claim(&version, BATCH)).await;
            done += raw::settle(&bare, &version, claimed).await;
        }
        rounds.push((ours, per_second(done, start)));
    }
    output.rates(&format!("receive and settle, batches of {BATCH}"), rounds);
}

/// Fills a topic with messages due at one instant, and waits until they are due.
async fn fill_due(server: &RedisServer, count: usize) {
    let seams = Seams::system("bench");
    let redis = connect(server, "promoter=elsewhere").await;
    let due = seams.clock.now().after(Duration::from_millis(500 + count as u64 / 10));
    send(&redis, &envelopes(&seams, count, |_| Due::At(due))).await;
    seams.clock.sleep_until(Timestamp(due.0 + 5)).await;
}

pub(crate) async fn promotes(output: &Output, scale: &Scale) {
    let mut rounds = vec![];
    for _ in 0..scale.rounds.min(3) {
        let server = server();
        fill_due(&server, scale.promoted).await;
        let url = TransportUrl::parse(&server.url()).expect("the URL is valid");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let watched = Raw::connect(&server).await;
        let start = Instant::now();
        let promoter = tokio::spawn(async move {
            let stop = Box::pin(async move { _ = stopped.await });
            dwell_redis::promote(&url, Seams::system("bench"), stop).await
        });
        let left = redis::cmd("ZCARD").arg("dwell:{orders}:due").to_owned();
        while watched.run(&left).await != redis::Value::Int(0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let ours = per_second(scale.promoted, start);
        drop(stop);
        promoter.await.expect("the promoter ends").expect("the promoter succeeds");

        let server = crate::server();
        fill_due(&server, scale.promoted).await;
        let (bare, version) = (Raw::connect(&server).await, version(&server));
        let mut command = raw::call(raw::PROMOTE, &version);
        command.arg(raw::CHUNK);
        let start = Instant::now();
        while raw::list(bare.run(&command).await)[1] == redis::Value::Int(1) {}
        rounds.push((ours, per_second(scale.promoted, start)));
    }
    output.rates(&format!("promote {} due messages", scale.promoted), rounds);
}
