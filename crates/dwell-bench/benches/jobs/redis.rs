//! Jobs on Redis, beside the transport that carries them, in the same run, each on a private server of its own.
//!
//! `cargo xtask bench redis` runs it, too; `--json` prints one object per line, `--smoke` only shows that it works.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod rate;

use dwell_bench::Output;
use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{Seams, TransportUrl};
use std::sync::Arc;

fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default()).expect("a private server starts")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let (rounds, messages) = if has("--smoke") { (1, 2_000) } else { (5, 20_000) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (mut beside_commands, mut beside_bare) = (vec![], vec![]);
    runtime.expect("a runtime can be started").block_on(async {
        for _ in 0..rounds {
            let jobs = rate::jobs(&server().url(), messages).await;
            beside_commands.push((jobs, rate::commands(&server().url(), messages).await));
            let (seams, bare) = (Seams::system("bench"), server());
            let url = TransportUrl::parse(&bare.url()).expect("it is a URL");
            let redis = dwell_redis::connect(&url, seams.clone()).await.expect("the server answers");
            beside_bare.push((jobs, rate::transport(Arc::new(redis), &seams, messages).await));
        }
    });
    let output = Output { bench: "redis", json: has("--json") };
    output.rates("jobs, submitted to completed with a result / commands", beside_commands);
    output.rates("jobs, submitted to completed with a result / bare transport", beside_bare);
}
