//! Benchmark of Dwell in a SQLite file, compared with bare SQLite doing the same work in the same
//! run.
//!
//! Run it with `cargo xtask bench sqlite`. `--json` prints one object per line; `--smoke` only
//! checks that the benchmark works. A word such as `sends` runs that part alone.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod disk;
mod idle;
mod lateness;
mod other;
mod ours;
mod pending;
mod raw;
mod raw_group_commit;
mod raw_log;
mod receives;
mod sends;

use dwell_bench::Output;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if let Some(at) = arguments.iter().position(|argument| argument == pending::ALONE) {
        return runtime().block_on(pending::alone(&arguments[at + 1]));
    }
    let output = Output { bench: "sqlite", json: has("--json") };
    let scale = if has("--smoke") { Scale::SMOKE } else { Scale::FULL };
    let named = arguments.iter().any(|argument| !argument.starts_with("--"));
    let runs = |part: &str| !named || has(part);
    runtime().block_on(async {
        if runs("idle") {
            idle::run(&output, &scale).await;
        }
        if runs("sends") {
            sends::run(&output, &scale).await;
        }
        if runs("receives") {
            receives::run(&output, &scale).await;
        }
        if runs("lateness") {
            lateness::steady(&output, &scale).await;
        }
        if runs("burst") {
            lateness::burst(&output, &scale).await;
        }
        if runs("pending") {
            pending::run(&output, &scale).await;
        }
        if runs("other") {
            other::run(&output, &scale).await;
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("the runtime starts")
}

/// Amount of work of a run.
struct Scale {
    rounds: usize,
    /// Messages in each round of sends and of receives.
    messages: usize,
    /// Number of concurrent senders, with one message each at a time.
    senders: [usize; 2],
    due_per_second: usize,
    seconds: usize,
    burst: usize,
    pending: [usize; 2],
    /// Operations of each kind on pending messages, in each round.
    sample: usize,
    idle_seconds: u64,
    /// Messages for the comparison with the other framework; `None` if that is not built.
    other: Option<usize>,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 9,
        messages: 40_000,
        senders: [100, 2_000],
        due_per_second: 1_000,
        seconds: 5,
        burst: 10_000,
        pending: [10_000, 1_000_000],
        sample: 2_000,
        idle_seconds: 10,
        other: Some(4_000),
    };
    const SMOKE: Self = Self {
        rounds: 1,
        messages: 2_000,
        senders: [10, 100],
        due_per_second: 200,
        seconds: 1,
        burst: 500,
        pending: [1_000, 5_000],
        sample: 200,
        idle_seconds: 1,
        other: None,
    };
}
