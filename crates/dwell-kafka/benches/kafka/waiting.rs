//! Memory of a relay with a large number of pending records, in a separate process. It must hardly
//! depend on their number and delay.

use crate::{Place, Scale, message};
use dwell_bench::{Output, process::resident};
use dwell_core::{Address, Due, Envelope, OnMissing, Seams, Topic, Transport};
use dwell_kafka::{Counts, Kafka, KafkaSettings, Ladder};
use std::{
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Flag that makes this executable a relay, for as long as its memory is measured.
pub(crate) const ALONE: &str = "--relay-alone";

/// Delays of records in minutes, and the ladder. No record becomes due, and hardly any leaves its
/// level, during the measurement.
struct Waits {
    how: &'static str,
    minutes: [u64; 6],
    /// The default ladder if absent.
    ladder: Option<&'static str>,
}

const WAITS: [Waits; 2] = [
    Waits { how: "for an hour to a month", minutes: [60, 61, 600, 1_500, 8_000, 43_000], ladder: None },
    // Half of the records are on their last stretch, which is an hour: the relay holds as many as
    // it may.
    Waits {
        how: "half of them on their last stretch",
        minutes: [30, 61, 45, 121, 59, 300],
        ladder: Some("1h,2h,4h"),
    },
];
/// How long nothing may change before the measurement.
const STEADY: Duration = Duration::from_secs(3);
const BATCH: usize = 5_000;

pub(crate) async fn run(output: &Output, scale: &Scale, place: &Place) {
    for waits in &WAITS {
        let mut figures = vec![];
        for count in [scale.waiting / 100, scale.waiting / 10, scale.waiting] {
            let (megabytes, held) = with(place, count, waits).await;
            let case = format!("memory of a relay, {count} records pending {}, {held} in memory", waits.how);
            output.figure(&case, megabytes, "MiB");
            figures.push(megabytes);
        }
        let [few, .., many] = figures[..] else { unreachable!("there are three figures") };
        let case = format!("memory of a relay, a hundred times as many records pending {}", waits.how);
        output.figure(&case, many / few, "times");
    }
}

/// Returns the memory of a relay with this number of pending records in MiB, and the number of
/// records that it holds.
async fn with(place: &Place, count: usize, waits: &'static Waits) -> (f64, u64) {
    let seams = Seams::system("bench");
    let prefix = format!("far-{}-", seams.incarnation);
    let ladder = waits.ladder.unwrap_or_default();
    let target = format!("{prefix}target");
    let kafka = Kafka::connect(settings(&place.address, &prefix, ladder), seams.clone()).await;
    let kafka = kafka.expect("a connection");
    kafka.provision(&[Topic::named(target.clone())], &[], OnMissing::Create).await.expect("topics");
    let producer = kafka.producer().await.expect("a producer");
    let envelope = |n: usize| {
        let due = Due::After(Duration::from_secs(waits.minutes[n % waits.minutes.len()] * 60));
        Envelope::new(Address::topic(target.clone()), message(&seams)).due(due)
    };
    for first in (0..count).step_by(BATCH) {
        let batch: Vec<_> = (first..count.min(first + BATCH)).map(envelope).collect();
        producer.send(&batch).await.into_iter().for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    }
    kafka.close().await.expect("the connection closes");
    let arguments = [place.address.clone(), prefix, ladder.to_owned(), count.to_string()];
    tokio::task::spawn_blocking(move || start(arguments)).await.expect("the relay ends")
}

/// Returns the default settings with this ladder and prefix.
pub(crate) fn settings(address: &str, prefix: &str, ladder: &str) -> KafkaSettings {
    let mut settings = KafkaSettings::at(address);
    settings.relay_inside = false;
    if !ladder.is_empty() {
        settings.relay.ladder = Ladder::parse(ladder).expect("a ladder");
    }
    settings.relay.prefix = prefix.to_owned();
    settings
}

fn start(arguments: [String; 4]) -> (f64, u64) {
    let this = std::env::current_exe().expect("the benchmark knows its own file");
    let output = Command::new(this).arg(ALONE).args(arguments).output().expect("a process can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text
        .split_once(' ')
        .and_then(|(megabytes, held)| Some((megabytes.parse().ok()?, held.trim().parse().ok()?)));
    let said = String::from_utf8_lossy(&output.stderr);
    figures.unwrap_or_else(|| panic!("no figures in `{text}`: {said}"))
}

/// Runs a relay until it has read all pending records and holds as many as it will, and prints its
/// memory.
pub(crate) async fn alone(arguments: &[String]) {
    let [address, prefix, ladder, count] = arguments else { panic!("not {arguments:?}") };
    let (seams, counts) = (Seams::system("bench"), Arc::new(Counts::default()));
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = Box::pin(async move { drop(stopped.await) });
    let (settings, count) = (settings(address, prefix, ladder), count.parse().expect("a number"));
    let relay = tokio::spawn(dwell_kafka::relay(settings, seams.clone(), counts.clone(), stopped));
    let (mut held, mut since) = (0, Instant::now());
    while since.elapsed() < STEADY {
        let tally = counts.tally();
        if std::mem::replace(&mut held, tally.held) != tally.held || tally.lag.values().sum::<u64>() < count {
            since = Instant::now();
        }
        seams.clock.sleep(Duration::from_millis(100)).await;
    }
    println!("{} {held}", resident() as f64 / f64::from(1 << 20));
    drop(stop);
    relay.await.expect("the relay ends").expect("the relay ends without an error");
}
