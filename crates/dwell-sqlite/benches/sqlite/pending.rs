//! With a great many pending: how soon a file is ready, what it takes in memory, and what each operation costs.

use crate::{
    Scale,
    disk::Place,
    ours::{self, BODY, Count, KIND, TOPIC},
    process::resident,
    receives::receive,
};
use dwell_bench::{Output, median};
use dwell_core::{
    Address, Changed, Due, Envelope, Message, Query, Random, ScheduleId, Scheduler, Seams, SeededRandom,
    Transport,
};
use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

/// Opens a file in a process of its own, and says how long that took and what it holds in memory.
pub(crate) const ALONE: &str = "--open-alone";

const BATCH: usize = 1000;
const ROUNDS: usize = 5;

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let seams = Seams::system("bench");
    let places = scale.pending.map(|pending| (pending, Place::new()));
    for (pending, place) in &places {
        let (sqlite, _) = ours::open_subscribed(place.path(), &seams).await;
        let scheduler = sqlite.scheduler().expect("SQLite can wait");
        schedule(&*scheduler, &SeededRandom::new(1), 0, *pending).await;
        sqlite.close().await.expect("the file closes");
    }
    // In turns, so that what else the machine does meets both.
    let mut costs: [Vec<Costs>; 2] = [vec![], vec![]];
    for round in 0..ROUNDS.min(scale.rounds) {
        for ((pending, place), costs) in places.iter().zip(&mut costs) {
            let sample = scale.sample / ROUNDS.min(scale.rounds);
            costs.push(Costs::measure(place.path(), *pending, round, sample).await);
        }
    }
    let [few, many] = costs.map(Costs::median);
    let label = format!("{} pending / {}:", scale.pending[1], scale.pending[0]);
    for (what, of) in [
        ("schedule", (|costs: &Costs| costs.schedule) as fn(&Costs) -> f64),
        ("cancel", |costs| costs.cancel),
        ("receive and ack", |costs| costs.receive),
    ] {
        output.ratio(&format!("{label} {what}"), of(&many), of(&few), of(&few) / of(&many), "us each");
    }
    let (seconds, megabytes) = open_alone(places[1].1.path());
    output.figure(&format!("{} pending: from open to ready", scale.pending[1]), seconds, "s");
    output.figure(&format!("{} pending: memory of the process", scale.pending[1]), megabytes, "MB");
}

/// Microseconds for one operation of each kind, where many are asked for at the same time.
struct Costs {
    schedule: f64,
    cancel: f64,
    receive: f64,
}

impl Costs {
    async fn measure(path: &Path, pending: usize, round: usize, sample: usize) -> Self {
        let seams = Seams::system("bench");
        let (sqlite, subscription) = ours::open_subscribed(path, &seams).await;
        let scheduler = sqlite.scheduler().expect("SQLite can wait");
        let random = SeededRandom::new(2 + round as u64);
        let each = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / sample as f64;

        let start = Instant::now();
        schedule(&*scheduler, &random, pending + round * sample, sample).await;
        let scheduled = each(start);

        // Each round has a part of its own, so that nothing is cancelled twice.
        let part = pending / ROUNDS;
        let first = random.next() as usize % part;
        let victims = (0..sample).map(|n| round * part + (first + n * 7919) % part);
        let victims: Vec<_> = victims.map(|n| ScheduleId(name(n).into())).collect();
        let start = Instant::now();
        for batch in victims.chunks(BATCH) {
            cancel(&scheduler, batch).await;
        }
        let cancelled = each(start);

        let producer = sqlite.producer().await.expect("the file is open");
        for sent in producer.send(&ours::envelopes(&seams, sample)).await {
            sent.expect("there is room");
        }
        let consumer = sqlite.consumer(subscription).await.expect("it was provisioned");
        let start = Instant::now();
        tokio::spawn(receive(consumer, sample)).await.expect("all are received");
        let received = each(start);

        sqlite.close().await.expect("the file closes");
        Self { schedule: scheduled, cancel: cancelled, receive: received }
    }

    fn median(all: Vec<Self>) -> Self {
        let of = |each: fn(&Self) -> f64| median(all.iter().map(each).collect());
        Self {
            schedule: of(|all| all.schedule),
            cancel: of(|all| all.cancel),
            receive: of(|all| all.receive),
        }
    }
}

fn name(n: usize) -> String {
    format!("bench-{n:010}")
}

async fn schedule(scheduler: &dyn Scheduler, random: &SeededRandom, from: usize, count: usize) {
    for first in (from..from + count).step_by(BATCH) {
        let batch = (first..(first + BATCH).min(from + count)).map(|n| {
            // Within a day, an hour from now at the earliest: nothing fires while we measure.
            let due = Duration::from_millis(3_600_000 + random.next() % 86_400_000);
            let message = Message::new(name(n), KIND, vec![b'x'; BODY]);
            Envelope::new(Address::topic(TOPIC), message).due(Due::After(due))
        });
        for result in scheduler.schedule(batch.collect()).await {
            result.expect("there is room");
        }
    }
}

/// Cancels all of these, each by itself and all at the same time.
async fn cancel(scheduler: &Arc<dyn Scheduler>, ids: &[ScheduleId]) {
    let cancels = ids.iter().cloned().map(|id| {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.cancel(&id).await })
    });
    let cancels: Vec<_> = cancels.collect();
    for cancel in cancels {
        let cancelled = cancel.await.expect("nothing panics").expect("the file is open");
        assert_eq!(cancelled, Changed::Done);
    }
}

fn open_alone(path: &Path) -> (f64, f64) {
    let this = std::env::current_exe().expect("the benchmark knows its own file");
    let output = Command::new(this).arg(ALONE).arg(path).output().expect("a process can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|figure| figure.parse().ok()).collect();
    match figures[..] {
        [seconds, megabytes] => (seconds, megabytes),
        _ => panic!("no figures, but `{text}`: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// From nothing to an engine that handles messages; then it works for a while, to see what it holds in memory.
pub(crate) async fn alone(path: &str) {
    let (seams, start) = (Seams::system("bench"), Instant::now());
    let handled = Count::down_from(1);
    let engine = ours::engine(Path::new(path), &seams, handled.clone()).await;
    ours::send(&engine, &ours::envelopes(&seams, 1)).await;
    handled.done().await;
    let ready = start.elapsed().as_secs_f64();
    // What people look at, and what programs do: the page caches fill up.
    let page = engine.pending(Query { limit: 100, ..Query::default() }).await.expect("the file is open");
    assert!(!page.is_empty(), "there is a great deal pending");
    let scheduler = engine.transport().scheduler().expect("SQLite can wait");
    schedule(&*scheduler, &SeededRandom::new(99), usize::MAX / 2, 20_000).await;
    println!("{ready} {}", resident() as f64 / 1e6);
    engine.shutdown().await.expect("the file closes");
}
