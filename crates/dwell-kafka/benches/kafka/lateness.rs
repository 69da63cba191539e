//! Lateness of records in their target, by the clock of the reader.

use crate::{Place, Scale, flow::settle, message, raw};
use dwell_bench::Output;
use dwell_core::{Address, Due, Envelope, OnMissing, Seams, Subscription, Timestamp, Topic, Transport};
use dwell_kafka::{Counts, Kafka};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::sync::oneshot;

/// Maximum number of rounds. Dwell and the bare client take turns.
const ROUNDS: usize = 3;

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    let rate = scale.due_per_second;
    // A broker that was just started is slow until its code is compiled. This is not measured.
    late(place, rate * scale.cold_seconds, |n| (n * 1000 / rate) as i64).await;
    let (lead, all) = (rate * scale.lead_seconds, rate * (scale.lead_seconds + scale.seconds));
    let (mut steady, mut trips) = (vec![], vec![]);
    for _ in 0..ROUNDS.min(scale.rounds) {
        steady.extend(late(place, all, |n| (n * 1000 / rate) as i64).await.split_off(lead));
        trips.extend(bare(place, rate, all).await.split_off(lead));
    }
    output.lateness(&format!("lateness at {rate}/s"), steady);
    output.lateness(&format!("bare client, sent to read at {rate}/s, for comparison"), trips);
    output.lateness(&format!("{} due at one instant", scale.burst), late(place, scale.burst, |_| 0).await);
}

/// Measures the latency of the broker, the bare client and the machine alone.
async fn bare(place: &Place, rate: usize, count: usize) -> Vec<f64> {
    let seams = Seams::system("bench");
    let kafka = Kafka::connect(place.settings(&seams, "1s"), seams.clone()).await.expect("a connection");
    let topic = Topic::named(format!("bare-{}", seams.incarnation));
    kafka.provision(std::slice::from_ref(&topic), &[], OnMissing::Create).await.expect("a topic");
    kafka.close().await.expect("the connection closes");
    let address = place.address.clone();
    let trips = tokio::task::spawn_blocking(move || raw::trips(&address, &topic.name, "bare", rate, count));
    trips.await.expect("the bare client does not panic")
}

/// Returns the milliseconds since the epoch, with a finer resolution than the clock of Dwell.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1000.0
}

/// How long before its due time each message is sent, in milliseconds: two levels, and the last
/// stretch.
const AHEAD: i64 = 4_000;

/// Sends messages that are due at a given number of milliseconds after a start, each of them the
/// same time before it is due, so that they arrive as steadily as they are sent.
async fn late(place: &Place, count: usize, due: impl Fn(usize) -> i64) -> Vec<f64> {
    let seams = Seams::system("bench");
    let settings = place.settings(&seams, "1s,2s,4s");
    let mail = Subscription::new(format!("late-{}", seams.incarnation), "mail");
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.expect("a connection");
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.expect("topics");
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let relay =
        tokio::spawn(dwell_kafka::relay(settings, seams.clone(), Arc::new(Counts::default()), stopped));
    let consumer = kafka.consumer(mail.clone()).await.expect("a consumer");
    let producer = kafka.producer().await.expect("a producer");
    let start = now() as i64 + AHEAD + 500;
    let envelope = |n| {
        let due = Due::At(Timestamp(start + due(n)));
        Envelope::new(Address::Topic(mail.topic.clone()), message(&seams)).due(due)
    };
    let all: Vec<_> = (0..count).map(envelope).collect();
    let clock = seams.clock.clone();
    let sender = tokio::spawn(async move {
        for batch in all.chunks(100) {
            let Due::At(due) = batch[0].due else { unreachable!("every message has a due time") };
            clock.sleep_until(Timestamp(due.0 - AHEAD)).await;
            producer.send(batch).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
        }
    });
    let mut seen = Vec::with_capacity(count);
    while seen.len() < count {
        let batch = consumer.receive(1000, Duration::from_secs(30), None).await.expect("a batch");
        let now = now();
        seen.extend(
            batch.iter().map(|delivery| now - delivery.due.expect("Kafka returns the due time").0 as f64),
        );
        settle(&*consumer, batch).await;
    }
    sender.await.expect("the sender does not panic");
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");
    kafka.close().await.expect("the connection closes");
    seen
}
