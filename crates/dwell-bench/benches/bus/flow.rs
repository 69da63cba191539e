//! From publish through a pipeline of three steps to handled.

use crate::{Scale, channel, other, ours, output::Output, two_threads};

pub(crate) fn run(output: &Output, scale: &Scale) {
    let (mut built, mut attributed, mut bare) = (vec![], vec![], vec![]);
    let (mut channels, mut others) = (vec![], vec![]);
    for _ in 0..scale.rounds {
        two_threads().block_on(async {
            built.push(ours::rate(scale.messages, ours::built()).await);
            channels.push(channel::rate(scale.messages).await);
            attributed.push(ours::rate(scale.messages, ours::attributed).await);
            others.push(other::rate(scale.messages).await);
            bare.push(ours::rate(scale.messages, ours::bare).await);
        });
    }
    output.rates("publish, 3 steps, handled (JSON, 100 bytes) / channel with JSON", &built, &channels);
    output.rates("publish, 3 steps, handled (JSON, 100 bytes) / apalis without JSON", &built, &others);
    output.rates("publish, no steps, handled (JSON, 100 bytes) / apalis without JSON", &bare, &others);
    output.rates("3 steps by attributes / by hand", &attributed, &built);
}
