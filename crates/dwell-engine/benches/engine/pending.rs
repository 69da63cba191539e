//! Costs of a schedule and a cancel with many pending messages, and memory per pending message.

use crate::Scale;
use dwell_bench::{Output, process::resident};
use dwell_core::{
    Address, Due, Entries, Envelope, Message, OnMissing, Random, Scheduler, Seams, SeededRandom, Topic,
    Transport,
};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const SAMPLE: usize = 50_000;
const BATCH: usize = 1000;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    for &pending in scale.pending {
        let before = resident();
        let seams = Seams::system("bench");
        let settings = MemorySettings { capacity: usize::MAX / 2, ..MemorySettings::default() };
        let memory = Arc::new(Memory::new(seams, settings));
        let topics = [Topic::named("bench").keep()];
        memory.provision(&topics, &[], OnMissing::Create).await.expect("memory creates topics");
        let scheduler = memory.scheduler().expect("memory has a scheduler");
        let random = SeededRandom::new(1);
        fill(&*scheduler, &random, 0, pending).await;
        let bytes = (resident().saturating_sub(before)) as f64 / pending as f64;
        let sample = SAMPLE.min(pending);
        let start = Instant::now();
        fill(&*scheduler, &random, pending, sample).await;
        let schedule = start.elapsed().as_nanos() as f64 / sample as f64;
        let victims: Vec<_> =
            (0..sample).map(|_| Entries::from(name(random.next() as usize % pending))).collect();
        let start = Instant::now();
        for id in &victims {
            scheduler.cancel(id).await.expect("memory answers");
        }
        let cancel = start.elapsed().as_nanos() as f64 / sample as f64;
        let label = format!("memory transport, {pending} pending:");
        output.figure(&format!("{label} schedule"), schedule, "ns");
        output.figure(&format!("{label} cancel"), cancel, "ns");
        // Fewer messages fit into memory that was freed before, and would seem to need none.
        if Some(&pending) == scale.pending.last() {
            output.figure(&format!("{label} memory each, 16-byte id and 100-byte body"), bytes, "bytes");
        }
    }
}

fn name(n: usize) -> String {
    format!("bench-{n:010}")
}

async fn fill(scheduler: &dyn Scheduler, random: &SeededRandom, from: usize, count: usize) {
    for first in (from..from + count).step_by(BATCH) {
        let batch = (first..(first + BATCH).min(from + count)).map(|n| {
            // Due from an hour to a day from now, so nothing fires during the measurement.
            let due = Duration::from_millis(3_600_000 + random.next() % 86_400_000);
            let message = Message::new(name(n), "bench.message", vec![b'x'; 100]);
            Envelope::new(Address::topic("bench"), message).due(Due::After(due))
        });
        for result in scheduler.schedule(batch.collect()).await {
            result.expect("the queue has room");
        }
    }
}
