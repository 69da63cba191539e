//! Throughput of the relay with a backlog of due records, against a bare loop that consumes,
//! produces and commits.

use crate::{Place, Scale, message, raw};
use dwell_bench::Output;
use dwell_core::{Address, Due, Envelope, OnMissing, Seams, Topic, Transport};
use dwell_kafka::{Counts, Kafka};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    let mut rounds = vec![];
    for _ in 0..scale.rounds {
        rounds.push(round(place, scale.backlog).await);
    }
    let most = raw::ON_THEIR_WAY;
    output.rates(&format!("relay of due records / bare consume, produce, commit, {most} in flight"), rounds);
}

async fn round(place: &Place, count: usize) -> (f64, f64) {
    let seams = Seams::system("bench");
    let settings = place.settings(&seams, "1h");
    let (target, other) = (format!("target-{}", seams.incarnation), format!("other-{}", seams.incarnation));
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.expect("a connection");
    let topics = [&target, &other].map(|topic| Topic::named(topic.clone()));
    kafka.provision(&topics, &[], OnMissing::Create).await.expect("topics");
    let producer = kafka.producer().await.expect("a producer");
    // Late enough that all records are sent before. Due records go straight to their target.
    let due = seams.clock.now().after(Duration::from_secs(10));
    let envelope = || Envelope::new(Address::topic(target.clone()), message(&seams)).due(Due::At(due));
    for _ in 0..count / 1000 {
        let batch: Vec<_> = (0..1000).map(|_| envelope()).collect();
        producer.send(&batch).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    }
    seams.clock.sleep_until(due).await;

    // Measure from the start of the relay to its end, as for the bare client. The last commit is
    // included, and records in flight give no head start. With so many records, the start hardly
    // matters.
    let start = Instant::now();
    let (counts, (stop, stopped)) = (Arc::new(Counts::default()), oneshot::channel::<()>());
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay = tokio::spawn(dwell_kafka::relay(settings.clone(), seams.clone(), counts.clone(), stopped));
    while counts.tally().forwarded < count as u64 {
        seams.clock.sleep(Duration::from_millis(1)).await;
    }
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");
    let ours = count as f64 / start.elapsed().as_secs_f64();

    let (address, from) = (place.address.clone(), format!("{}due", settings.relay.prefix));
    let group = format!("raw-{}", seams.incarnation);
    let raw = tokio::task::spawn_blocking(move || raw::relays(&address, &from, &other, &group, count));
    let raw = raw.await.expect("the bare client relays");
    kafka.close().await.expect("the connection closes");
    (ours, raw)
}
