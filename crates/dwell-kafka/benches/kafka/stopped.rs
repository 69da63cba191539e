//! A relay that was stopped while records became due: how fast it catches up, and whether all
//! records arrive, and none early.

use crate::{Place, Scale, flow::settle, message};
use dwell_bench::Output;
use dwell_core::{Address, Due, Envelope, OnMissing, Result, Seams, Subscription, Timestamp, Transport};
use dwell_kafka::{Counts, Kafka, KafkaSettings};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Number of records that the first relay forwards: some in every partition.
const BEFORE: usize = 1_000;

/// Starts a relay. Drop the sender to stop it.
fn start_relay(settings: &KafkaSettings, seams: &Seams) -> (JoinHandle<Result<()>>, oneshot::Sender<()>) {
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let counts = Arc::new(Counts::default());
    (tokio::spawn(dwell_kafka::relay(settings.clone(), seams.clone(), counts, stopped)), stop)
}

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    let seams = Seams::system("bench");
    let mut settings = place.settings(&seams, "1s");
    settings.partitions = 4;
    let mail = Subscription::new(format!("stopped-{}", seams.incarnation), "mail");
    let kafka = Kafka::connect(settings.clone(), seams.clone()).await.expect("a connection");
    kafka.provision(&[], std::slice::from_ref(&mail), OnMissing::Create).await.expect("topics");
    let producer = kafka.producer().await.expect("a producer");
    let consumer = kafka.consumer(mail.clone()).await.expect("a consumer");
    // The first relay works and leaves; the second one continues from its offsets.
    let (relay, stop) = start_relay(&settings, &seams);
    let due = Due::After(Duration::from_millis(1_500));
    let before: Vec<_> = (0..BEFORE)
        .map(|_| Envelope::new(Address::Topic(mail.topic.clone()), message(&seams)).due(due))
        .collect();
    producer.send(&before).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    let mut came = BTreeSet::new();
    while came.len() < BEFORE {
        let batch = consumer.receive(1000, Duration::from_secs(60), None).await.expect("a batch");
        assert!(!batch.is_empty(), "only {} of {BEFORE} arrived", came.len());
        came.extend(batch.iter().map(|delivery| delivery.message.id.clone()));
        settle(&*consumer, batch).await;
    }
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");

    let start = Instant::now();
    // Earliest time at which each message may arrive, in microseconds.
    let mut expected = BTreeMap::new();
    // Each record waits for one or two levels and a bit more, while no relay runs.
    for batch in 0..scale.messages / 1000 {
        let envelope = |n: usize| {
            let due = Due::After(Duration::from_millis(1_000 + (n as u64 * 37) % 1_900));
            Envelope::new(Address::Topic(mail.topic.clone()), message(&seams)).due(due)
        };
        let envelopes: Vec<_> = (0..1000).map(envelope).collect();
        let now = seams.clock.moment().micros();
        expected.extend(envelopes.iter().map(|envelope| {
            let due = now + envelope.due.wait(Timestamp(0)).as_micros() as i64;
            (envelope.message.id.clone(), due)
        }));
        producer.send(&envelopes).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
        let pace = scale.stopped * batch as u32 / (scale.messages / 1000) as u32;
        seams.clock.sleep(pace.saturating_sub(start.elapsed())).await;
    }
    seams.clock.sleep(scale.stopped.saturating_sub(start.elapsed())).await;

    let (relay, stop) = start_relay(&settings, &seams);
    let (mut first, mut early, count) = (None, 0, expected.len());
    while !expected.is_empty() {
        let batch = consumer.receive(1000, Duration::from_secs(60), None).await.expect("a batch");
        assert!(!batch.is_empty(), "{} of {count} are lost", expected.len());
        first.get_or_insert_with(Instant::now);
        let now = seams.clock.moment().micros();
        for delivery in &batch {
            early += usize::from(expected.remove(&delivery.message.id).is_some_and(|due| now < due));
        }
        settle(&*consumer, batch).await;
    }
    let took = first.expect("a message arrived").elapsed();
    assert_eq!(early, 0, "some records arrived early");
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");
    kafka.close().await.expect("the connection closes");
    let seconds = scale.stopped.as_secs();
    let case = format!("a relay that was stopped for {seconds} s catches up, 0 lost, 0 early");
    output.figure(&case, count as f64 / took.as_secs_f64(), "messages/s");
}
