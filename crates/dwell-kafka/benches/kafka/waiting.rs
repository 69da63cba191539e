//! What a relay takes while a great many records wait: the same, however many.

use crate::{Place, Scale, message};
use dwell_bench::Output;
use dwell_core::{Address, Due, Envelope, OnMissing, Seams, Topic, Transport};
use dwell_kafka::{Counts, Kafka};
use std::{sync::Arc, time::Duration};
use tokio::sync::oneshot;

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    for share in [100, 1] {
        let count = scale.waiting / share;
        output.figure(
            &format!("memory that a relay adds, {count} records waiting"),
            grown(place, count).await,
            "MiB",
        );
    }
}

async fn grown(place: &Place, count: usize) -> f64 {
    let seams = Seams::system("bench");
    let settings = place.settings(&seams, "1h,2h,4h");
    let target = format!("far-{}", seams.incarnation);
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.expect("a connection");
    kafka.provision(&[Topic::named(target.clone())], &[], OnMissing::Create).await.expect("topics");
    let producer = kafka.producer().await.expect("a producer");
    for batch in 0..count.div_ceil(5000) {
        let hours = [1, 2, 5][batch % 3];
        let due = Due::After(Duration::from_secs(hours * 3600 + 60));
        let envelope = || Envelope::new(Address::topic(target.clone()), message(&seams)).due(due);
        let batch: Vec<_> = (0..count.min(5000)).map(|_| envelope()).collect();
        producer.send(&batch).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    }
    kafka.close().await.expect("it closes");
    let before = resident();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay =
        tokio::spawn(dwell_kafka::relay(settings, seams.clone(), Arc::new(Counts::default()), stopped));
    seams.clock.sleep(Duration::from_secs(5)).await;
    let after = resident();
    drop(stop);
    relay.await.expect("it ends").expect("it ends well");
    after - before
}

/// What this process has in memory, in MiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: f64 = line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default();
    kib / 1024.0
}
