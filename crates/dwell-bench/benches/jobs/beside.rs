//! Jobs beside the bare transport in the same run, each on a separate store.

use crate::rate;
use dwell_bench::Output;
use dwell_core::{Seams, Transport};
use std::sync::Arc;

/// Number of rounds, and of messages in each.
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    pub(crate) messages: usize,
}

/// Measures on new stores of this kind. A store has a URL, can be opened without a bus, and is
/// deleted when it is dropped.
pub(crate) fn run<S>(
    bench: &'static str,
    full: Scale,
    new: impl Fn() -> S,
    url: impl Fn(&S) -> String,
    open: impl AsyncFn(&S, Seams) -> Arc<dyn Transport>,
) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let Scale { rounds, messages } = if has("--smoke") { Scale { rounds: 1, messages: 2_000 } } else { full };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (mut beside_commands, mut beside_bare, mut beside_generated) = (vec![], vec![], vec![]);
    runtime.expect("a runtime can be started").block_on(async {
        for _ in 0..rounds {
            let [ours, named, sent, bare] = [new(), new(), new(), new()];
            let jobs = rate::jobs(&url(&ours), messages).await;
            let id = |number| Some(format!("order-{number}"));
            beside_generated.push((rate::jobs_under(id, &url(&named), messages).await, jobs));
            beside_commands.push((jobs, rate::commands(&url(&sent), messages).await));
            let seams = Seams::system("bench");
            let transport = open(&bare, seams.clone()).await;
            beside_bare.push((jobs, rate::transport(transport, &seams, messages).await));
        }
    });
    let output = Output { bench, json: has("--json") };
    output.rates("jobs, submitted to completed with a result / commands", beside_commands);
    output.rates("jobs, submitted to completed with a result / bare transport", beside_bare);
    output.rates("jobs with ids of their own / with generated ones", beside_generated);
}
