//! What each step costs one message: the time with the step less the time without.

use crate::{
    Scale,
    message::{Left, Placed},
    ours,
    output::Output,
};
use dwell::{Cx, Next, Pipeline, Step};
use std::time::{Duration, Instant};

pub(crate) fn run(output: &Output, scale: &Scale) {
    let pipelines: Vec<fn() -> Pipeline<Placed>> = vec![
        || Pipeline::new(ours::bare),
        || Pipeline::new(ours::bare).step(Step::defer_on_error()),
        || Pipeline::new(ours::bare).step(Step::reject_on_error()),
        || Pipeline::new(ours::bare).step(Step::release_on_error()),
        || Pipeline::new(ours::bare).step(Step::retry()),
        || Pipeline::new(ours::bare).step(Step::retry_inline()),
        || Pipeline::new(ours::bare).step(Step::timeout(Duration::from_secs(10))),
        || Pipeline::new(ours::bare).step(Step::circuit_breaker()),
        || Pipeline::new(ours::bare).step(Step::rate_limit(1e9).burst(1_000_000)),
        || Pipeline::new(ours::bare).step(Step::inbox()),
        || Pipeline::new(ours::bare).step(around()),
    ];
    let mut costs = vec![f64::INFINITY; pipelines.len()];
    for _ in 0..scale.rounds {
        for (cost, pipeline) in costs.iter_mut().zip(&pipelines) {
            // The least disturbed round: noise only ever adds.
            *cost = cost.min(nanoseconds(scale.runs, pipeline()));
        }
    }
    output.figure("receive, no steps, handled, settled", costs[0], "ns");
    for (pipeline, cost) in pipelines.iter().zip(&costs).skip(1) {
        let step = pipeline();
        output.figure(&format!("step {}", step.steps()[0].name()), cost - costs[0], "ns");
    }
}

fn around() -> Step {
    Step::around("around", |_: Cx, next: Next| async move { next.run().await })
}

/// From received to settled, on one thread, with everything sent before: nanoseconds per message.
fn nanoseconds(messages: usize, pipeline: Pipeline<Placed>) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime can be started").block_on(async {
        let left = Left::new(messages);
        let bus = ours::bus(&left, pipeline).await;
        ours::pause(&bus);
        for sent in bus.send_all((0..messages).map(|number| bus.publish(Placed::new(number)))).await {
            sent.expect("there is room");
        }
        let start = Instant::now();
        ours::resume(&bus);
        left.none().await;
        let cost = start.elapsed().as_nanos() as f64 / messages as f64;
        bus.shutdown().await.expect("memory closes");
        cost
    })
}
