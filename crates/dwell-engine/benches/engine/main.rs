//! The engine on the memory transport, compared with a plain implementation of the same work in the
//! same run.
//!
//! Run it with `cargo xtask bench core`. `--json` prints one object per line, `--smoke` is a short
//! functional test.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod lateness;
mod pending;
mod throughput;

use dwell_bench::Output;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let output = Output { bench: "core", json: has("--json") };
    let scale = if has("--smoke") { Scale::SMOKE } else { Scale::FULL };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.expect("the runtime starts");
    runtime.block_on(async {
        throughput::run(&output, &scale).await;
        lateness::run(&output, &scale).await;
        pending::run(&output, &scale).await;
    });
}

/// Amount of work in a run.
struct Scale {
    messages: usize,
    rounds: usize,
    due_per_second: usize,
    seconds: usize,
    burst: usize,
    pending: &'static [usize],
}

impl Scale {
    const FULL: Self = Self {
        messages: 2_000_000,
        rounds: 5,
        due_per_second: 100_000,
        seconds: 5,
        burst: 1_000_000,
        pending: &[10_000, 1_000_000, 10_000_000],
    };
    const SMOKE: Self = Self {
        messages: 20_000,
        rounds: 2,
        due_per_second: 5_000,
        seconds: 1,
        burst: 10_000,
        pending: &[1_000, 10_000],
    };
}
