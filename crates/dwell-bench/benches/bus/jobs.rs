//! Jobs in memory, beside the bare transport.

#[path = "../jobs/rate.rs"]
mod rate;

use crate::{Scale, two_threads};
use dwell_bench::{Output, in_turns};
use dwell_core::Seams;
use dwell_engine::memory::{Memory, MemorySettings};
use std::sync::Arc;

pub(crate) fn run(output: &Output, scale: &Scale) {
    let (mut jobs, mut commands, mut bare) = (vec![], vec![], vec![]);
    for _ in 0..scale.rounds {
        two_threads().block_on(async {
            let url = format!("memory://?capacity={}", scale.messages);
            jobs.push(rate::jobs(&url, scale.messages).await);
            commands.push(rate::commands(&url, scale.messages).await);
            let seams = Seams::system("bench");
            let settings = MemorySettings { capacity: scale.messages, ..MemorySettings::default() };
            bare.push(
                rate::transport(Arc::new(Memory::new(seams.clone(), settings)), &seams, scale.messages).await,
            );
        });
    }
    output.rates("jobs, submitted to completed with a result / commands", in_turns(&jobs, &commands));
    output.rates("jobs, submitted to completed with a result / bare transport", in_turns(&jobs, &bare));
}
