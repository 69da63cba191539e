//! The bus in memory, beside a bare channel and another framework in the same run.
//!
//! `cargo xtask bench bus` runs it; `--json` prints one object per line, `--smoke` only checks that
//! it runs. A word such as `jobs` runs only that part.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod channel;
mod flow;
mod jobs;
mod message;
mod other;
mod ours;
mod sending;
mod steps;

use dwell_bench::Output;

/// Capacity of the queue between producers and handler.
const CAPACITY: usize = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let output = Output { bench: "bus", json: has("--json") };
    let scale = if has("--smoke") { Scale::SMOKE } else { Scale::FULL };
    let named = arguments.iter().any(|argument| !argument.starts_with("--"));
    let parts: [(&str, Part); 4] =
        [("flow", flow::run), ("steps", steps::run), ("sending", sending::run), ("jobs", jobs::run)];
    for (part, run) in parts {
        if !named || has(part) {
            run(&output, &scale);
        }
    }
}

type Part = fn(&Output, &Scale);

/// Number of messages of one round.
struct Scale {
    rounds: usize,
    /// From publish to handled.
    messages: usize,
    /// Through one step of a pipeline.
    runs: usize,
    /// Sends without a handler; they fit into the default queue.
    sends: usize,
    /// Sends that wait until they are handled.
    inline: usize,
}

impl Scale {
    const FULL: Self = Self { rounds: 15, messages: 200_000, runs: 5_000, sends: 100_000, inline: 20_000 };
    const SMOKE: Self = Self { rounds: 2, messages: 2_000, runs: 500, sends: 1_000, inline: 500 };
}

/// A runtime with two threads.
fn two_threads() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime can be started")
}
