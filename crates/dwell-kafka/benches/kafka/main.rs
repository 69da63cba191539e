//! Benchmarks of Dwell on Kafka against the bare client, in the same run on the same broker.
//!
//! `cargo xtask bench kafka` runs them; `--json` prints one object per line, and `--smoke` only
//! shows that they work. A word such as `relay` runs that part alone. The broker is the one in
//! `DWELL_TEST_KAFKA_URL`, or a new one.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod flow;
mod idle;
mod lateness;
mod raw;
mod relay;
mod stopped;
mod waiting;

use dwell_bench::Output;
use dwell_conformance::servers::kafka::KafkaServer;
use dwell_core::{Message, Seams};
use dwell_kafka::{KafkaSettings, Ladder};
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be started");
    if let Some(at) = arguments.iter().position(|argument| argument == waiting::ALONE) {
        return runtime.block_on(waiting::alone(&arguments[at + 1..at + 5]));
    }
    let output = Output { bench: "kafka", json: has("--json") };
    let scale = if has("--smoke") { Scale::SMOKE } else { Scale::FULL };
    let named = arguments.iter().any(|argument| !argument.starts_with("--"));
    let runs = |part: &str| !named || has(part);
    runtime.block_on(async {
        let place = Place::open();
        if runs("idle") {
            idle::run(&output, &scale, &place).await;
        }
        if runs("sends") {
            flow::sends(&output, &scale, &place).await;
        }
        if runs("receives") {
            flow::receives(&output, &scale, &place).await;
        }
        if runs("relay") {
            relay::run(&output, &scale, &place).await;
        }
        if runs("lateness") {
            lateness::run(&output, &scale, &place).await;
        }
        if runs("stopped") {
            stopped::run(&output, &scale, &place).await;
        }
        if runs("waiting") {
            waiting::run(&output, &scale, &place).await;
        }
    });
}

/// The broker.
struct Place {
    address: String,
    /// Stopped with the benchmark.
    _server: Option<KafkaServer>,
}

impl Place {
    fn open() -> Self {
        if let Ok(url) = std::env::var("DWELL_TEST_KAFKA_URL") {
            return Self { address: url.trim_start_matches("kafka://").to_owned(), _server: None };
        }
        let server = KafkaServer::start_for_production().expect("a broker can be started");
        Self { address: server.address(), _server: Some(server) }
    }

    /// Returns the default settings with separate delay topics, and with one partition, as for the
    /// bare client.
    fn settings(&self, seams: &Seams, ladder: &str) -> KafkaSettings {
        let mut settings = KafkaSettings::at(&self.address);
        settings.partitions = 1;
        settings.relay_inside = false;
        settings.relay.ladder = Ladder::parse(ladder).expect("a ladder");
        settings.relay.prefix = format!("bench-{}-", seams.incarnation);
        settings
    }
}

/// Returns a message of a common size.
fn message(seams: &Seams) -> Message {
    Message::new(seams.ids.next(), "bench.message", vec![b'x'; 100]).with(|message| {
        message.sent_at = Some(seams.clock.now());
    })
}

/// How much work a run does.
struct Scale {
    rounds: usize,
    messages: usize,
    /// Number of stored messages when reading begins.
    backlog: usize,
    due_per_second: usize,
    /// Duration of the flow before the first round, so that the broker has compiled its code.
    cold_seconds: usize,
    /// Duration of the flow in each round: until all groups are stable, and while it is measured.
    lead_seconds: usize,
    seconds: usize,
    burst: usize,
    waiting: usize,
    /// How long a relay is stopped.
    stopped: Duration,
    idle_seconds: u64,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 5,
        messages: 100_000,
        backlog: 500_000,
        due_per_second: 1_000,
        cold_seconds: 40,
        lead_seconds: 2,
        seconds: 10,
        burst: 10_000,
        waiting: 1_000_000,
        stopped: Duration::from_secs(60),
        idle_seconds: 10,
    };
    const SMOKE: Self = Self {
        rounds: 1,
        messages: 2_000,
        backlog: 2_000,
        due_per_second: 200,
        cold_seconds: 1,
        lead_seconds: 1,
        seconds: 1,
        burst: 500,
        waiting: 5_000,
        stopped: Duration::from_secs(3),
        idle_seconds: 1,
    };
}
