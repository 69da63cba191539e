//! From publish through a pipeline of three steps to handled.

use crate::{Scale, channel, other, ours, two_threads};
use dwell_bench::{Output, in_turns};

pub(crate) fn run(output: &Output, scale: &Scale) {
    beside_others(output, scale, "1 producer", 1);
    beside_others(output, scale, "4 producers", 4);
    by_attributes(output, scale);
}

/// With one producer, sending and handling have a thread each; with several, they share threads.
fn beside_others(output: &Output, scale: &Scale, label: &str, producers: usize) {
    let (mut bus, mut channels, mut others) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        two_threads().block_on(async {
            bus.push(ours::rate(scale.messages, producers, ours::built()).await);
            channels.push(channel::rate(scale.messages, producers).await);
            others.push(other::rate(scale.messages, producers).await);
        });
    }
    output
        .rates(&format!("publish, 3 steps, handled, {label} / channel with JSON"), in_turns(&bus, &channels));
    output
        .rates(&format!("publish, 3 steps, handled, {label} / apalis without JSON"), in_turns(&bus, &others));
}

fn by_attributes(output: &Output, scale: &Scale) {
    let (mut attributed, mut built) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        two_threads().block_on(async {
            attributed.push(ours::rate(scale.messages, 4, ours::attributed).await);
            built.push(ours::rate(scale.messages, 4, ours::built()).await);
        });
    }
    output.rates("3 steps by attributes / by hand", in_turns(&attributed, &built));
}
