//! Memory of messages on the server, and the time to recover messages of dead workers.

use crate::{BODY, Scale, ask, connect, envelopes, info, mail, raw::Raw, send, server, steps::Steps};
use dwell_bench::Output;
use dwell_core::{Action, Due, Note, Outcome, Seams, Settle, Transport, TransportUrl, wire};
use std::time::{Duration, Instant};

pub(crate) async fn memory(output: &Output, scale: &Scale) {
    for (options, what) in [("ledger=false", ""), ("ledger=true", ", with the ledger")] {
        let (server, seams) = (server(), Seams::system("bench"));
        let redis = connect(&server, options).await;
        let before = info(&server, "memory", "used_memory_dataset");
        let later = |n| Due::After(Duration::from_millis(3_600_000 + n as u64 * 7));
        send(&redis, &envelopes(&seams, scale.pending, later)).await;
        let used = info(&server, "memory", "used_memory_dataset").saturating_sub(before);
        let each = used as f64 / scale.pending as f64 - BODY as f64;
        output.figure(
            &format!("memory for each of {} pending messages, without the body{what}", scale.pending),
            each,
            "bytes",
        );
    }
}

/// Measures the stream after a thousand messages and after a million. Its size should not grow.
pub(crate) async fn growth(output: &Output, scale: &Scale) {
    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "done=0s").await;
    let consumer = redis.consumer(mail()).await.expect("the subscription exists");
    let mut through = 0;
    while through < scale.through {
        let some = 1000.min(scale.through - through);
        send(&redis, &envelopes(&seams, some, |_| Due::NOW)).await;
        let mut done = 0;
        while done < some {
            let batch =
                consumer.receive(1000, Duration::from_secs(1), None).await.expect("the server answers");
            done += batch.len();
            let settle = batch.into_iter().map(|delivery| {
                let note =
                    Note { outcome: Outcome::Handled, error: None, worker: "b".into(), moved_to: None };
                Settle { delivery, action: Action::ACK, note }
            });
            assert!(consumer.settle(settle.collect()).await.is_empty());
        }
        through += some;
        if through == 1000 || through == scale.through {
            let after = format!("after {through} messages");
            let length = ask(&server, &["xlen", "dwell:{orders}:ready:mail"]);
            output.figure(&format!("entries of the stream {after}"), length as f64, "entries");
            let size = ask(&server, &["memory", "usage", "dwell:{orders}:ready:mail"]);
            output.figure(&format!("memory of the stream {after}"), size as f64, "bytes");
            let all = info(&server, "memory", "used_memory_dataset");
            output.figure(&format!("memory of all data {after}"), all as f64, "bytes");
        }
    }
}

/// Measures how messages of dead workers become ready again, in small steps.
pub(crate) async fn stuck(output: &Output, scale: &Scale) {
    let (server, seams) = (server(), Seams::system("bench"));
    let redis = connect(&server, "").await;
    send(&redis, &envelopes(&seams, scale.stuck, |_| Due::NOW)).await;
    let consumer = redis.consumer(mail()).await.expect("the subscription exists");
    let (mut held, lease) = (0, Duration::from_secs(20));
    while held < scale.stuck {
        held += consumer
            .receive(1000, Duration::from_secs(1), Some(lease))
            .await
            .expect("the server answers")
            .len();
    }
    // Sets their leases to expired.
    for index in 0..scale.stuck.div_ceil(1000) {
        let lua = "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + 999)) do \
                   redis.call('ZADD', KEYS[1], 1, e) end";
        let first = (index * 1000).to_string();
        let _ = server.cli(&["eval", lua, "1", "dwell:{orders}:leases:mail", &first]);
    }
    // A rewrite of the append-only file runs in a child process, which would compete for the
    // processor.
    let _ = server.cli(&["config", "set", "auto-aof-rewrite-percentage", "0"]);
    while info(&server, "persistence", "aof_rewrite_in_progress") > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Over an open connection, because a new process for each query would disturb the server.
    let raw = Raw::connect(&server).await;
    let mut steps = Steps::watch(&server, &raw).await;
    let url = TransportUrl::parse(&server.url()).expect("it is a URL");
    let start = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let promoter = tokio::spawn(async move {
        let stop = Box::pin(async move { _ = stopped.await });
        dwell_redis::promote(&url, Seams::system("bench"), stop).await
    });
    let left = redis::cmd("ZCARD").arg("dwell:{orders}:leases:mail").to_owned();
    while raw.run(&left).await != redis::Value::Int(0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = start.elapsed().as_secs_f64();
    drop(stop);
    promoter.await.expect("the promoter ends").expect("the promoter succeeds");
    output.figure(&format!("recovery of {} that were stuck", scale.stuck), took, "s");
    steps.show(output, "recovery").await;

    // Lost jobs are delayed before they run again: the consumer that receives one puts it off.
    let start = Instant::now();
    let (mut put_off, later) = (0, Due::After(Duration::from_secs(3600)));
    while put_off < scale.stuck {
        let batch = consumer.receive(200, Duration::from_secs(1), None).await.expect("the server answers");
        put_off += batch.len();
        let settle = batch.into_iter().map(|mut delivery| {
            // As the rules do, it is stored under a separate name.
            delivery.message.headers.set(wire::LOST_COUNT, "1");
            let note = Note { outcome: Outcome::Released, error: None, worker: "b".into(), moved_to: None };
            Settle { delivery, action: Action::Move { to: mail().address(), due: later }, note }
        });
        assert!(consumer.settle(settle.collect()).await.is_empty());
    }
    assert_eq!(
        ask(&server, &["zcard", "dwell:{orders}:aliases"]),
        scale.stuck,
        "every lost job has its own name"
    );
    let took = start.elapsed().as_secs_f64();
    output.figure(&format!("putting off {} that were stuck", scale.stuck), took, "s");
    steps.show(output, "putting off").await;

    send(&redis, &envelopes(&seams, 1000, |_| Due::NOW)).await;
    steps.show(output, "sending 1000").await;
    let mut held = 0;
    while held < 1000 {
        held += consumer.receive(1000, Duration::from_secs(1), None).await.expect("the server answers").len();
    }
    steps.show(output, "handing 1000 out").await;
    consumer.close().await.expect("the server answers");
    steps.show(output, "leaving with 1000 in hand").await;
}
