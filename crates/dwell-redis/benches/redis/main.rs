//! Dwell on Redis, compared with a bare client that runs the same scripts in the same batches, in
//! the same run.
//!
//! `cargo xtask bench redis` runs it on a private server. `--json` prints one object per line;
//! `--smoke` only checks that it works. A name such as `sends` runs only that part.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod flow;
mod late;
mod raw;
mod room;
mod steps;

use dwell_bench::Output;
use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{Address, Due, Envelope, Message, OnMissing, Seams, Subscription, Transport, TransportUrl};
use dwell_redis::Redis;

/// Amount of work of a run.
struct Scale {
    rounds: usize,
    /// Messages in each round of sends, and of receives.
    messages: usize,
    promoted: usize,
    due_per_second: usize,
    seconds: usize,
    burst: usize,
    pending: usize,
    through: usize,
    stuck: usize,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 5,
        messages: 20_000,
        promoted: 100_000,
        due_per_second: 1_000,
        seconds: 5,
        burst: 10_000,
        pending: 100_000,
        through: 1_000_000,
        stuck: 100_000,
    };
    const SMOKE: Self = Self {
        rounds: 1,
        messages: 1_000,
        promoted: 1_000,
        due_per_second: 100,
        seconds: 1,
        burst: 500,
        pending: 5_000,
        through: 5_000,
        stuck: 1_000,
    };
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let output = Output { bench: "redis", json: has("--json") };
    let scale = if has("--smoke") { Scale::SMOKE } else { Scale::FULL };
    let named = arguments.iter().any(|argument| !argument.starts_with("--"));
    let runs = |part: &str| !named || has(part);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be started").block_on(async {
        if runs("sends") {
            flow::sends(&output, &scale).await;
        }
        if runs("receives") {
            flow::receives(&output, &scale).await;
        }
        if runs("promotes") {
            flow::promotes(&output, &scale).await;
        }
        if runs("lateness") {
            late::steady(&output, &scale).await;
        }
        if runs("burst") {
            late::burst(&output, &scale).await;
        }
        if runs("memory") {
            room::memory(&output, &scale).await;
        }
        if runs("growth") {
            room::growth(&output, &scale).await;
        }
        if runs("stuck") {
            room::stuck(&output, &scale).await;
        }
    });
}

/// Starts a private server with an append-only file that is synchronised once a second.
fn server() -> RedisServer {
    RedisServer::start(RedisOptions::default()).expect("a private server starts")
}

fn mail() -> Subscription {
    Subscription::new("orders", "mail")
}

async fn connect(server: &RedisServer, options: &str) -> Redis {
    let url = TransportUrl::parse(&format!("{}?{options}", server.url())).expect("the URL is valid");
    let redis = dwell_redis::connect(&url, Seams::system("bench")).await.expect("the server answers");
    redis.provision(&[], &[mail()], OnMissing::Create).await.expect("the topics are created");
    redis
}

const BODY: usize = 100;

/// Returns this number of messages with the given due times.
fn envelopes(seams: &Seams, count: usize, due: impl Fn(usize) -> Due) -> Vec<Envelope> {
    let one = |n| {
        let message = Message::new(seams.ids.next(), "orders.placed", vec![b'x'; BODY]);
        Envelope::new(Address::topic("orders"), message).due(due(n))
    };
    (0..count).map(one).collect()
}

/// Sends all of them, a thousand at a time.
async fn send(redis: &Redis, envelopes: &[Envelope]) {
    let producer = redis.producer().await.expect("the connection is open");
    for batch in envelopes.chunks(1000) {
        assert!(producer.send(batch).await.iter().all(Result::is_ok), "all are confirmed");
    }
}

/// Runs a command with `redis-cli`, and returns the number that it prints.
fn ask(server: &RedisServer, arguments: &[&str]) -> usize {
    let said = server.cli(arguments).expect("redis-cli runs").stdout;
    String::from_utf8_lossy(&said).trim().parse().unwrap_or(0)
}

/// Returns a field of `INFO`.
fn info(server: &RedisServer, section: &str, field: &str) -> usize {
    let said = server.cli(&["info", section]).expect("redis-cli runs").stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let value = said.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}
