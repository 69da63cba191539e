//! Jobs in memory, beside the transport that carries them.

#[path = "../jobs/rate.rs"]
mod rate;

use crate::{Scale, output::Output, two_threads};
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
    output.rates("jobs, submitted to completed with a result / commands", &jobs, &commands);
    output.rates("jobs, submitted to completed with a result / bare transport", &jobs, &bare);
}
