//! Cost of a relay without work, as every bus runs it, on the default ladder.

use crate::{Place, Scale, waiting::settings};
use dwell_bench::{Output, process::processor_time};
use dwell_core::Seams;
use dwell_kafka::Counts;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    let (seams, counts) = (Seams::system("bench"), Arc::new(Counts::default()));
    let settings = settings(&place.address, &format!("idle-{}-", seams.incarnation), "");
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay = tokio::spawn(dwell_kafka::relay(settings, seams, counts, stopped));
    // Wait until all groups are stable.
    tokio::time::sleep(Duration::from_secs(scale.idle_seconds)).await;
    let (start, before) = (Instant::now(), processor_time());
    tokio::time::sleep(Duration::from_secs(scale.idle_seconds)).await;
    let share = (processor_time() - before) / start.elapsed().as_secs_f64();
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");
    output.figure("idle relay, on the default ladder of 18 levels", share * 100.0, "% of a core");
}
