//! Processor time of a subscribed engine without messages.

use crate::{
    Scale,
    disk::Place,
    ours::{self, Count, DEFAULT_BATCH},
};
use dwell_bench::{Output, process::processor_time};
use dwell_core::Seams;
use std::time::{Duration, Instant};

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let place = Place::new();
    let engine =
        ours::engine(place.path(), &Seams::system("bench"), Count::down_from(usize::MAX), DEFAULT_BATCH)
            .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (start, before) = (Instant::now(), processor_time());
    tokio::time::sleep(Duration::from_secs(scale.idle_seconds)).await;
    let share = (processor_time() - before) / start.elapsed().as_secs_f64();
    engine.shutdown().await.expect("closing the file succeeds");
    output.figure("idle, subscribed", share * 100.0, "% of a core");
}
