//! Cost of each step per message: the time with the step minus the time without it.

use crate::{
    Scale,
    message::{Left, Placed},
    ours,
};
use dwell::{Cx, Next, Pipeline, Step};
use dwell_bench::Output;
use std::time::{Duration, Instant};

pub(crate) fn run(output: &Output, scale: &Scale) {
    let steps: [fn() -> Step; 10] = [
        || Step::defer_on_error().into(),
        Step::reject_on_error,
        Step::release_on_error,
        || Step::retry().into(),
        || Step::retry_inline().into(),
        || Step::timeout(Duration::from_secs(10)),
        || Step::circuit_breaker().into(),
        || Step::rate_limit(1e9).burst(1_000_000).into(),
        || Step::inbox().into(),
        around,
    ];
    // The fastest round counts, because noise only adds time.
    let mut without = f64::INFINITY;
    let mut with = [f64::INFINITY; 10];
    for _ in 0..4 * scale.rounds {
        without = without.min(nanoseconds(scale.runs, Pipeline::new(ours::bare)));
        for (step, with) in steps.iter().zip(&mut with) {
            *with = with.min(nanoseconds(scale.runs, Pipeline::new(ours::bare).step(step())));
        }
    }
    output.figure("received, no step, handled", without, "ns");
    for (step, with) in steps.iter().zip(with) {
        output.figure(&format!("step {}", step().name()), with - without, "ns");
    }
}

fn around() -> Step {
    Step::around("around", |_: Cx, next: Next| async move { next.run().await })
}

/// Nanoseconds per message from receive to settle, on one thread; all messages are sent before.
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
