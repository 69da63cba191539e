//! With a great many pending: how soon a file is ready, what it takes in memory, and what each operation costs.

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

/// Opens a file in a process of its own, and says how long that took and what it holds in memory.
pub(crate) const ALONE: &str = "--open-alone";

/// What one call schedules at most.
const BATCH: usize = 1000;

/// One kind of operation. Callers ask for one thing each at the same time: one alone, as many as a busy service has, and as
/// many as one transaction takes.
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

/// What is measured.
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
    // It stays open, as in a service: what it takes to open it is a figure of its own.
    let large = filled(&place, &seams, many).await;
    let mut file = File::new(&large, many);
    let mut costs = [vec![], vec![]];
    // In turns, so that what else the machine does meets both. What is over stays in a file: it would make the small one
    // several times as large over the rounds, and so there is a new one for each.
    let random = SeededRandom::new(3);
    for _ in 0..scale.rounds {
        let (place, order) = (Place::new(), any_order(&random));
        let small = filled(&place, &seams, few).await;
        costs[0].push(File::new(&small, few).measure(&order, scale.sample).await);
        small.0.close().await.expect("the file closes");
        costs[1].push(file.measure(&order, scale.sample).await);
        file.level().await;
    }
    drop(file);
    large.0.close().await.expect("the file closes");
    let label = format!("{many} pending / {few}:");
    for (at, (kind, _)) in KINDS.into_iter().enumerate() {
        // What the disk takes depends on who else is at it; what the processors take does not.
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

/// The [`KINDS`] in another order each time, because what each leaves in the log is written into the file while another one
/// runs, whichever that is.
fn any_order(random: &SeededRandom) -> Vec<usize> {
    let mut order: Vec<_> = (0..KINDS.len()).map(|at| (random.next(), at)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, at)| at).collect()
}

/// What one takes on average, but for the slowest round: the machines are shared. The middle one would not do, because the
/// log is written into the file in some of the rounds alone.
fn mean(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    let counted = &costs[..costs.len().saturating_sub(1).max(1)];
    counted.iter().sum::<f64>() / counted.len() as f64
}

/// A new file with so many pending.
async fn filled(place: &Place, seams: &Seams, pending: usize) -> (Sqlite, Subscription) {
    let file = ours::open_subscribed(place.path(), seams).await;
    let scheduler = file.0.scheduler().expect("SQLite can wait");
    schedule(&*scheduler, &SeededRandom::new(1), 0, pending).await;
    file
}

/// A file with so many pending.
struct File<'a> {
    sqlite: &'a Sqlite,
    subscription: &'a Subscription,
    scheduler: Arc<dyn Scheduler>,
    random: SeededRandom,
    pending: usize,
    /// The numbers of those that wait, in any order.
    waiting: Vec<usize>,
    /// The number of the next one.
    next: usize,
}

impl<'a> File<'a> {
    fn new((sqlite, subscription): &'a (Sqlite, Subscription), pending: usize) -> Self {
        let scheduler = sqlite.scheduler().expect("SQLite can wait");
        let (random, waiting) = (SeededRandom::new(2), (0..pending).collect());
        Self { sqlite, subscription, scheduler, random, pending, waiting, next: pending }
    }

    /// Microseconds for one operation of each of the [`KINDS`]; as many operations whatever is pending.
    async fn measure(&mut self, order: &[usize], sample: usize) -> Vec<[f64; 2]> {
        let mut costs = vec![[0.0; 2]; KINDS.len()];
        for &at in order {
            let kind = KINDS[at].1;
            // Each waits for a commit of its own, or reads a good deal.
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

    /// Cancels what was scheduled beyond what is to be pending, so that every round meets as many.
    async fn level(&mut self) {
        let beyond = self.waiting.len().saturating_sub(self.pending);
        self.cancel(beyond, BATCH).await;
        let short = self.fresh(self.pending - self.waiting.len());
        schedule(&*self.scheduler, &self.random, short.start, short.len()).await;
    }

    /// So many that were never there.
    fn fresh(&mut self, count: usize) -> Range<usize> {
        let fresh = self.next..self.next + count;
        self.next = fresh.end;
        self.waiting.extend(fresh.clone());
        fresh
    }

    /// One that waits, from anywhere in the file.
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
        assert!(sample <= self.waiting.len(), "there is enough to cancel");
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

    /// To another time, for as many as are asked for, from anywhere in the file.
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
            sent.expect("there is room");
        }
        let consumer = self.sqlite.consumer(self.subscription.clone()).await.expect("it was provisioned");
        let start = Stamp::now();
        tokio::spawn(receive(consumer, sample)).await.expect("all are received");
        start.passed()
    }
}

impl File<'_> {
    /// What people do who look at it, one after the other.
    async fn look(&self, kind: Kind, sample: usize) -> [f64; 2] {
        let ledger = self.sqlite.ledger().expect("SQLite has one");
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

/// What passes while something is measured, in seconds: of time, and of the processors.
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

/// Runs all of these at the same time, each by itself.
async fn at_once<T, F: Future<Output = ()> + Send + 'static>(
    items: impl Iterator<Item = T>,
    run: impl Fn(T) -> F,
) {
    let running: Vec<_> = items.map(|item| tokio::spawn(run(item))).collect();
    for run in running {
        run.await.expect("nothing panics");
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
            result.expect("there is room");
        }
    }
}

/// Within a day, an hour from now at the earliest: nothing fires while we measure.
fn soon(random: &SeededRandom) -> Due {
    Due::After(Duration::from_millis(3_600_000 + random.next() % 86_400_000))
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
    let engine = ours::engine(Path::new(path), &seams, handled.clone(), ours::LARGE_BATCH).await;
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
