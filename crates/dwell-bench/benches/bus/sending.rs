//! Sends alone, and sends that wait until their messages are handled.

use crate::{
    Scale,
    message::{Left, Place},
    ours, two_threads,
};
use dwell::{Builder, prelude::*};
use dwell_bench::{Output, median};
use std::time::Instant;

const BATCH: usize = 100;

pub(crate) fn run(output: &Output, scale: &Scale) {
    let (mut one_by_one, mut in_batches, mut inline) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        two_threads().block_on(async {
            let bus = paused().await;
            one_by_one.push(rate(scale.sends, send_one_by_one(bus, scale.sends)).await);
            let bus = paused().await;
            in_batches.push(rate(scale.sends, send_in_batches(bus, scale.sends)).await);
            let bus = start(Bus::builder().inline()).await;
            inline.push(rate(scale.inline, send_one_by_one(bus, scale.inline)).await);
        });
    }
    output.figure("send().await alone", median(one_by_one), "messages/s");
    output.figure("send_all of 100 alone", median(in_batches), "messages/s");
    output.figure("inline dispatch: send().await until handled", median(inline), "messages/s");
}

async fn place(_: Place, State(left): State<Left>) {
    left.handled();
}

async fn start(wiring: Builder) -> Bus {
    let wiring = wiring.state(Left::new(usize::MAX)).handle(place);
    wiring.start("memory://").await.expect("memory starts")
}

/// Sends without a consumer.
async fn paused() -> Bus {
    let bus = start(Bus::builder()).await;
    ours::pause(&bus);
    bus
}

async fn rate(messages: usize, sends: impl Future<Output = Bus> + Send + 'static) -> f64 {
    let start = Instant::now();
    // The bus and its messages are dropped after the measurement.
    let _bus = tokio::spawn(sends).await.expect("nobody panics");
    messages as f64 / start.elapsed().as_secs_f64()
}

async fn send_one_by_one(bus: Bus, messages: usize) -> Bus {
    for number in 0..messages {
        bus.send(Place::new(number)).await.expect("there is room");
    }
    bus
}

async fn send_in_batches(bus: Bus, messages: usize) -> Bus {
    for first in (0..messages).step_by(BATCH) {
        let batch = (first..first + BATCH).map(|number| bus.send(Place::new(number)));
        for sent in bus.send_all(batch).await {
            sent.expect("there is room");
        }
    }
    bus
}
