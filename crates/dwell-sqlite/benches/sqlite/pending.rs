//! Benchmark with many pending messages: time to open a file, memory, and cost of each operation.

use crate::{
    Scale,
    disk::Place,
    ours::{self, BODY, Count, KIND, TOPIC},
    receives::receive,
};
use dwell_bench::{
    Output,
    process::{processor_time, resident},
};
use dwell_core::{
    Address, Changed, Due, Entries, Envelope, Message, MessageId, Query, Random, RecordQuery, Scheduler,
    Seams, SeededRandom, Subscription, Transport,
};
use dwell_sqlite::Sqlite;
use std::{
    ops::Range,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

/// Opens a file in a separate process, and prints the time and the memory that this takes.
pub(crate) const ALONE: &str = "--open-alone";

/// Maximum number of messages scheduled by one call.
const BATCH: usize = 1000;

/// Kind of operation. Concurrent callers perform one operation each: a single caller, as many
/// callers as a busy service has, or as many as one transaction accepts.
#[derive(Clone, Copy)]
enum Kind {
    Schedule { callers: usize },
    ScheduleBatches,
    Cancel { callers: usize },
    Reschedule { callers: usize },
    Receive,
    Counts,
    Get,
    Page,
}

/// Measured operations.
const KINDS: [(&str, Kind); 14] = [
    ("schedule, 1 caller", Kind::Schedule { callers: 1 }),
    ("schedule, 100 callers", Kind::Schedule { callers: 100 }),
    ("schedule, 1000 callers", Kind::Schedule { callers: BATCH }),
    ("schedule, batches of 1000", Kind::ScheduleBatches),
    ("cancel, 1 caller", Kind::Cancel { callers: 1 }),
    ("cancel, 100 callers", Kind::Cancel { callers: 100 }),
    ("cancel, 1000 callers", Kind::Cancel { callers: BATCH }),
    ("reschedule, 1 caller", Kind::Reschedule { callers: 1 }),
    ("reschedule, 100 callers", Kind::Reschedule { callers: 100 }),
    ("reschedule, 1000 callers", Kind::Reschedule { callers: BATCH }),
    ("receive and ack, batches of 500", Kind::Receive),
    ("counts of the ledger", Kind::Counts),
    ("one record, by its id", Kind::Get),
    ("the first 50 records", Kind::Page),
];

pub(crate) async fn run(output: &Output, scale: &Scale) {
    let seams = Seams::system("bench");
    let [few, many] = scale.pending;
    let place = Place::new();
    // The large file stays open, as in a service; the time to open it is measured separately.
    let large = filled(&place, &seams, many).await;
    let mut file = File::new(&large, many);
    let mut costs = [vec![], vec![]];
    // The two files alternate, so that other load on the machine affects both. Finished records
    // stay in a file and would make the small one several times as large over the rounds, so each
    // round gets a new small file.
    let random = SeededRandom::new(3);
    for _ in 0..scale.rounds {
        let (place, order) = (Place::new(), any_order(&random));
        let small = filled(&place, &seams, few).await;
        costs[0].push(File::new(&small, few).measure(&order, scale.sample).await);
        small.0.close().await.expect("closing the file succeeds");
        costs[1].push(file.measure(&order, scale.sample).await);
        file.level().await;
    }
    drop(file);
    large.0.close().await.expect("closing the file succeeds");
    let label = format!("{many} pending / {few}:");
    for (at, (kind, _)) in KINDS.into_iter().enumerate() {
        // The elapsed time depends on other users of the disk; the processor time does not.
        for (of, unit) in ["us each", "us of a core each"].into_iter().enumerate() {
            let of = |costs: &Vec<Vec<[f64; 2]>>| mean(costs.iter().map(|costs| costs[at][of]).collect());
            let [of_few, of_many] = costs.each_ref().map(of);
            output.ratio(&format!("{label} {kind}"), of_many, of_few, of_few / of_many, unit);
        }
    }
    let (seconds, megabytes) = open_alone(place.path());
    output.figure(&format!("{many} pending: from open to ready"), seconds, "s");
    output.figure(&format!("{many} pending: memory of the process"), megabytes, "MB");
}

/// Returns the [`KINDS`] in a different order each time, since the log of one operation is copied
/// to the file while another one runs.
fn any_order(random: &SeededRandom) -> Vec<usize> {
    let mut order: Vec<_> = (0..KINDS.len()).map(|at| (random.next(), at)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, at)| at).collect()
}

/// Returns the mean without the slowest round, since the machine is shared. The median would be
/// wrong, because a checkpoint runs in only some of the rounds.
fn mean(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    let counted = &costs[..costs.len().saturating_sub(1).max(1)];
    counted.iter().sum::<f64>() / counted.len() as f64
}

/// Returns a new file with this number of pending messages.
async fn filled(place: &Place, seams: &Seams, pending: usize) -> (Sqlite, Subscription) {
    let file = ours::open_subscribed(place.path(), seams).await;
    let scheduler = file.0.scheduler().expect("SQLite has a scheduler");
    schedule(&*scheduler, &SeededRandom::new(1), 0, pending).await;
    file
}

/// File with this number of pending messages.
struct File<'a> {
    sqlite: &'a Sqlite,
    subscription: &'a Subscription,
    scheduler: Arc<dyn Scheduler>,
    random: SeededRandom,
    pending: usize,
    /// Numbers of the pending messages, in any order.
    waiting: Vec<usize>,
    /// Number of the next message.
    next: usize,
}

impl<'a> File<'a> {
    fn new((sqlite, subscription): &'a (Sqlite, Subscription), pending: usize) -> Self {
        let scheduler = sqlite.scheduler().expect("SQLite has a scheduler");
        let (random, waiting) = (SeededRandom::new(2), (0..pending).collect());
        Self { sqlite, subscription, scheduler, random, pending, waiting, next: pending }
    }

    /// Returns the microseconds per operation of each of the [`KINDS`], with equally many
    /// operations whatever the number of pending messages.
    async fn measure(&mut self, order: &[usize], sample: usize) -> Vec<[f64; 2]> {
        let mut costs = vec![[0.0; 2]; KINDS.len()];
        for &at in order {
            let kind = KINDS[at].1;
            // Each of these waits for its own commit, or reads much data.
            let alone = matches!(
                kind,
                Kind::Schedule { callers: 1 }
                    | Kind::Cancel { callers: 1 }
                    | Kind::Reschedule { callers: 1 }
                    | Kind::Page
            );
            let sample = if alone { sample.div_ceil(10) } else { sample };
            let passed = match kind {
                Kind::Schedule { callers } => self.schedule(sample, callers).await,
                Kind::ScheduleBatches => self.schedule_batches(sample).await,
                Kind::Cancel { callers } => self.cancel(sample, callers).await,
                Kind::Reschedule { callers } => self.reschedule(sample, callers).await,
                Kind::Receive => self.receive(sample).await,
                Kind::Counts | Kind::Get | Kind::Page => self.look(kind, sample).await,
            };
            costs[at] = passed.map(|seconds| seconds * 1e6 / sample as f64);
        }
        costs
    }

    /// Cancels surplus pending messages, so that every round starts with the same number.
    async fn level(&mut self) {
        let beyond = self.waiting.len().saturating_sub(self.pending);
        self.cancel(beyond, BATCH).await;
        let short = self.fresh(self.pending - self.waiting.len());
        schedule(&*self.scheduler, &self.random, short.start, short.len()).await;
    }

    /// Returns this number of unused message numbers.
    fn fresh(&mut self, count: usize) -> Range<usize> {
        let fresh = self.next..self.next + count;
        self.next = fresh.end;
        self.waiting.extend(fresh.clone());
        fresh
    }

    /// Returns the index of a random pending message.
    fn any(&self) -> usize {
        (self.random.next() % self.waiting.len() as u64) as usize
    }

    async fn schedule(&mut self, sample: usize, callers: usize) -> [f64; 2] {
        let (fresh, random) = (self.fresh(sample), Arc::new(SeededRandom::new(self.next as u64)));
        let start = Stamp::now();
        for first in fresh.clone().step_by(callers) {
            at_once(first..(first + callers).min(fresh.end), |n| {
                let (scheduler, random) = (self.scheduler.clone(), random.clone());
                async move { schedule(&*scheduler, &random, n, 1).await }
            })
            .await;
        }
        start.passed()
    }

    async fn schedule_batches(&mut self, sample: usize) -> [f64; 2] {
        let fresh = self.fresh(sample);
        let start = Stamp::now();
        schedule(&*self.scheduler, &self.random, fresh.start, sample).await;
        start.passed()
    }

    async fn cancel(&mut self, sample: usize, callers: usize) -> [f64; 2] {
        assert!(sample <= self.waiting.len(), "there are enough pending messages to cancel");
        let victims = (0..sample).map(|_| Entries::from(name(self.waiting.swap_remove(self.any()))));
        let victims: Vec<_> = victims.collect();
        let start = Stamp::now();
        for ids in victims.chunks(callers) {
            at_once(ids.iter().cloned(), |id| {
                let scheduler = self.scheduler.clone();
                async move {
                    let cancelled = scheduler.cancel(&id).await.expect("the file is open");
                    assert_eq!(cancelled, Changed::Done);
                }
            })
            .await;
        }
        start.passed()
    }

    /// Reschedules this number of random pending messages.
    async fn reschedule(&mut self, sample: usize, callers: usize) -> [f64; 2] {
        let chosen = (0..sample).map(|_| (Entries::from(name(self.waiting[self.any()])), soon(&self.random)));
        let chosen: Vec<_> = chosen.collect();
        let start = Stamp::now();
        for some in chosen.chunks(callers) {
            at_once(some.iter().cloned(), |(id, due)| {
                let scheduler = self.scheduler.clone();
                async move {
                    let changed = scheduler.reschedule(&id, due).await.expect("the file is open");
                    assert_eq!(changed, Changed::Done);
                }
            })
            .await;
        }
        start.passed()
    }

    async fn receive(&mut self, sample: usize) -> [f64; 2] {
        let producer = self.sqlite.producer().await.expect("the file is open");
        for sent in producer.send(&ours::envelopes(&Seams::system("bench"), sample)).await {
            sent.expect("the send succeeds");
        }
        let consumer =
            self.sqlite.consumer(self.subscription.clone()).await.expect("the subscription exists");
        let start = Stamp::now();
        tokio::spawn(receive(consumer, sample)).await.expect("all messages are received");
        start.passed()
    }
}

impl File<'_> {
    /// Runs ledger queries one after the other.
    async fn look(&self, kind: Kind, sample: usize) -> [f64; 2] {
        let ledger = self.sqlite.ledger().expect("SQLite has a ledger");
        let start = Stamp::now();
        for _ in 0..sample {
            let found = match kind {
                Kind::Counts => ledger.counts().await.map(|counts| counts.len()),
                Kind::Get => {
                    let id = MessageId::from(name(self.waiting[self.any()]));
                    ledger.get(&id).await.map(|records| records.len())
                }
                _ => {
                    let query = RecordQuery { limit: 50, ..RecordQuery::default() };
                    ledger.list(query).await.map(|page| page.items.len())
                }
            };
            assert_ne!(found.expect("the file is open"), 0);
        }
        start.passed()
    }
}

/// Start of a measurement: elapsed time and processor time, in seconds.
#[derive(Clone, Copy)]
struct Stamp(Instant, f64);

impl Stamp {
    fn now() -> Self {
        Self(Instant::now(), processor_time())
    }

    fn passed(self) -> [f64; 2] {
        [self.0.elapsed().as_secs_f64(), processor_time() - self.1]
    }
}

/// Runs these tasks concurrently.
async fn at_once<T, F: Future<Output = ()> + Send + 'static>(
    items: impl Iterator<Item = T>,
    run: impl Fn(T) -> F,
) {
    let running: Vec<_> = items.map(|item| tokio::spawn(run(item))).collect();
    for run in running {
        run.await.expect("the task does not panic");
    }
}

fn name(n: usize) -> String {
    format!("bench-{n:010}")
}

async fn schedule(scheduler: &dyn Scheduler, random: &SeededRandom, from: usize, count: usize) {
    for first in (from..from + count).step_by(BATCH) {
        let batch = (first..(first + BATCH).min(from + count)).map(|n| {
            let message = Message::new(name(n), KIND, vec![b'x'; BODY]);
            Envelope::new(Address::topic(TOPIC), message).due(soon(random))
        });
        for result in scheduler.schedule(batch.collect()).await {
            result.expect("the send succeeds");
        }
    }
}

/// Returns a due time between one hour and 25 hours from now, so that no message fires during the
/// measurement.
fn soon(random: &SeededRandom) -> Due {
    Due::After(Duration::from_millis(3_600_000 + random.next() % 86_400_000))
}

fn open_alone(path: &Path) -> (f64, f64) {
    let this = std::env::current_exe().expect("the path of this benchmark is known");
    let output = Command::new(this).arg(ALONE).arg(path).output().expect("the process starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|figure| figure.parse().ok()).collect();
    match figures[..] {
        [seconds, megabytes] => (seconds, megabytes),
        _ => panic!("expected two figures, got `{text}`: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Measures the time from opening the file until an engine handles a message, then works for a
/// while and prints the memory.
pub(crate) async fn alone(path: &str) {
    let (seams, start) = (Seams::system("bench"), Instant::now());
    let handled = Count::down_from(1);
    let engine = ours::engine(Path::new(path), &seams, handled.clone(), ours::LARGE_BATCH).await;
    ours::send(&engine, &ours::envelopes(&seams, 1)).await;
    handled.done().await;
    let ready = start.elapsed().as_secs_f64();
    // Fill the page caches with typical queries and sends.
    let page = engine.pending(Query { limit: 100, ..Query::default() }).await.expect("the file is open");
    assert!(!page.is_empty(), "there are pending messages");
    let scheduler = engine.transport().scheduler().expect("SQLite has a scheduler");
    schedule(&*scheduler, &SeededRandom::new(99), usize::MAX / 2, 20_000).await;
    println!("{ready} {}", resident() as f64 / 1e6);
    engine.shutdown().await.expect("closing the file succeeds");
}
