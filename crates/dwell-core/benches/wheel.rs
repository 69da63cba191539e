//! Compares the timing wheel with `tokio_util::time::DelayQueue`: the same operations, alternating,
//! in one process.
//!
//! `cargo bench -p dwell-core --bench wheel` prints a table. `-- --json` prints one object per
//! line. `-- --smoke` uses small numbers and takes about a second.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use dwell_core::{
    Timestamp,
    wheel::{Key, Wheel},
};
use std::{
    env, fs,
    hint::black_box,
    process::Command,
    time::{Duration, Instant},
};
use tokio_util::time::{DelayQueue, delay_queue};

/// Time of the benchmark's clock: in 2025, as milliseconds since the epoch.
const NOW: i64 = 1_750_000_000_000;

/// Option for a run that only reports its memory.
const MEMORY: &str = "--memory";

const SPREADS: [(&str, i64); 3] = [("1 s", 1_000), ("1 h", 3_600_000), ("10 days", 864_000_000)];

fn main() {
    let options: Vec<String> = env::args().skip(1).collect();
    let has = |name: &str| options.iter().any(|option| option == name);
    if let [mode, pending, span] = &options[..]
        && mode == MEMORY
    {
        return print_memory(pending.parse().expect("a count"), span.parse().expect("a time in ms"));
    }
    let report = Report { json: has("--json") };
    let (sizes, rounds): (&[usize], usize) =
        if has("--smoke") { (&[1_000, 20_000], 3) } else { (&[10_000, 1_000_000, 10_000_000], 15) };

    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime starts");
    let _entered = runtime.enter();

    report.heading();
    for &(spread, span) in &SPREADS {
        let costs: Vec<_> = sizes.iter().map(|&size| compare(&report, size, spread, span, rounds)).collect();
        for (sizes, costs) in sizes.windows(2).zip(costs.windows(2)) {
            let (from, to) = (short(sizes[0]), short(sizes[1]));
            let growth = [costs[1].0 / costs[0].0, costs[1].1 / costs[0].1];
            for (operation, growth) in ["insert", "cancel"].iter().zip(growth) {
                let case = format!("wheel {operation}, cost at {to} over cost at {from}, within {spread}");
                report.figure(&case, growth, "times");
            }
        }
    }
    for &(spread, span) in &SPREADS {
        for &size in sizes {
            memory(&report, size, spread, span);
            pop(&report, &format!("{} within {spread}", short(size)), size, |random| random.below(span));
        }
    }
    for &size in sizes {
        // Nine of ten are due at one instant, the others around it.
        pop(&report, &format!("{} mostly at one instant", short(size)), size, |random| {
            match random.below(10) {
                0 => random.below(3_600_000),
                _ => 300_000,
            }
        });
    }
}

/// Inserts and cancels while `pending` entries are pending, alternating between both sides. Returns
/// the costs of our operations in seconds.
fn compare(report: &Report, pending: usize, spread: &str, span: i64, rounds: usize) -> (f64, f64) {
    let mut random = Random(pending as u64);
    let fills = (20_000_000 / pending).clamp(1, rounds);
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..fills {
        times[0].push(Pending::<Wheel<u64>>::new(pending, span, &mut random.clone()).1);
        times[1].push(Pending::<DelayQueue<u64>>::new(pending, span, &mut random.clone()).1);
    }
    let [ours_fill, raw_fill] = times.map(|times| median(times).as_secs_f64() / pending as f64);
    let mut ours = Pending::<Wheel<u64>>::new(pending, span, &mut random.clone()).0;
    let mut raw = Pending::<DelayQueue<u64>>::new(pending, span, &mut random.clone()).0;
    let count = (pending / 10).clamp(1_000, 200_000);
    let rounds = rounds * 100_000_usize.div_ceil(count).min(10);
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let (ours_insert, ours_cancel) = ours.round(count, span, &mut random.clone());
        let (raw_insert, raw_cancel) = raw.round(count, span, &mut random);
        for (times, time) in times.iter_mut().zip([ours_insert, raw_insert, ours_cancel, raw_cancel]) {
            times.push(time);
        }
    }
    let [ours_insert, raw_insert, ours_cancel, raw_cancel] =
        times.map(|times| median(times).as_secs_f64() / count as f64);
    let pending = short(pending);
    report.ratio(&format!("wheel fill to {pending}, within {spread}"), ours_fill, raw_fill);
    report.ratio(&format!("wheel insert, {pending} pending, within {spread}"), ours_insert, raw_insert);
    report.ratio(&format!("wheel cancel, {pending} pending, within {spread}"), ours_cancel, raw_cancel);
    (ours_insert, ours_cancel)
}

/// Pops all entries like a caller with a lock: up to a thousand at a time, each time followed by
/// `next_due`.
fn pop(report: &Report, what: &str, pending: usize, mut due: impl FnMut(&mut Random) -> i64) {
    let mut random = Random(pending as u64);
    let mut wheel = Wheel::new();
    for value in 0..pending as u64 {
        wheel.insert(Timestamp(NOW + due(&mut random)), value);
    }
    let mut batch = Vec::with_capacity(1_000);
    let mut calls = Vec::new();
    let started = Instant::now();
    while !wheel.is_empty() {
        let call = Instant::now();
        wheel.pop_due(Timestamp::MAX, 1_000, &mut batch);
        black_box(wheel.next_due());
        calls.push(call.elapsed());
        batch.clear();
    }
    let rate = pending as f64 / started.elapsed().as_secs_f64();
    calls.sort();
    let micros = |call: &Duration| call.as_secs_f64() * 1e6;
    report.figure(&format!("wheel pop, {what}"), rate, "op/s");
    report.figure(
        &format!("wheel pop, p99 of 1000 at a time, {what}"),
        micros(&calls[calls.len() * 99 / 100]),
        "µs",
    );
    report.figure(
        &format!("wheel pop, longest of 1000 at a time, {what}"),
        micros(&calls[calls.len() - 1]),
        "µs",
    );
    report.figure(&format!("wheel memory once empty, {what}"), wheel.memory() as f64, "B");
}

/// Runs this program again and reports the memory of a process that does nothing else.
fn memory(report: &Report, pending: usize, spread: &str, span: i64) {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new(program).args([MEMORY, &pending.to_string(), &span.to_string()]).output();
    let output =
        String::from_utf8(output.expect("this program can be run again").stdout).expect("it prints text");
    let size = short(pending);
    for (what, bytes) in
        ["memory", "resident memory", "resident memory at its peak"].iter().zip(output.split(' '))
    {
        if let Ok(bytes) = bytes.trim().parse::<f64>() {
            let case = format!("wheel {what}, {size} pending, within {spread}");
            report.figure(&case, bytes / pending as f64, "B/entry");
        }
    }
}

/// Prints the wheel's own figure, the growth of the process, and its maximum growth.
fn print_memory(pending: usize, span: i64) {
    let mut random = Random(pending as u64);
    let before = resident();
    let mut wheel = Wheel::new();
    for value in 0..pending as u64 {
        wheel.insert(Timestamp(NOW + random.below(span)), value);
    }
    let Some(((before, _), (after, peak))) = before.zip(resident()) else {
        return print!("{}", wheel.memory());
    };
    print!("{} {} {}", wheel.memory(), after.saturating_sub(before), peak.saturating_sub(before));
}

/// Returns the current and maximum resident memory of this process in bytes, if the system reports
/// them.
fn resident() -> Option<(usize, usize)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let figure = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<usize>().ok().map(|kilobytes| kilobytes * 1024)
    };
    figure("VmRSS:").zip(figure("VmHWM:"))
}

/// The operations that are measured on both sides.
trait Timers {
    type Due: Copy;
    type Key;
    fn empty() -> Self;
    /// Returns a due time in the form that makes inserting cheapest.
    fn due(start: Instant, millis: i64) -> Self::Due;
    fn add(&mut self, due: Self::Due, value: u64) -> Self::Key;
    fn take(&mut self, key: Self::Key);
}

impl Timers for Wheel<u64> {
    type Due = Timestamp;
    type Key = Key;

    fn empty() -> Self {
        Self::new()
    }

    fn due(_: Instant, millis: i64) -> Timestamp {
        Timestamp(NOW + millis)
    }

    fn add(&mut self, due: Timestamp, value: u64) -> Key {
        self.insert(due, value)
    }

    fn take(&mut self, key: Key) {
        black_box(self.cancel(key));
    }
}

impl Timers for DelayQueue<u64> {
    type Due = tokio::time::Instant;
    type Key = delay_queue::Key;

    fn empty() -> Self {
        Self::new()
    }

    fn due(start: Instant, millis: i64) -> tokio::time::Instant {
        (start + Duration::from_millis(millis as u64)).into()
    }

    fn add(&mut self, due: tokio::time::Instant, value: u64) -> delay_queue::Key {
        self.insert_at(value, due)
    }

    fn take(&mut self, key: delay_queue::Key) {
        black_box(self.remove(&key));
    }
}

/// One side, with the keys of the pending entries.
struct Pending<W: Timers> {
    timers: W,
    keys: Vec<W::Key>,
    start: Instant,
}

impl<W: Timers> Pending<W> {
    /// Inserts `count` entries. Returns the time that this took.
    fn new(count: usize, span: i64, random: &mut Random) -> (Self, Duration) {
        let mut pending = Self { timers: W::empty(), keys: Vec::new(), start: Instant::now() };
        let time = pending.insert(count, span, random);
        (pending, time)
    }

    fn insert(&mut self, count: usize, span: i64, random: &mut Random) -> Duration {
        let dues: Vec<_> = (0..count).map(|_| W::due(self.start, random.below(span))).collect();
        self.keys.reserve(count);
        let started = Instant::now();
        for (&due, value) in dues.iter().zip(0..) {
            let key = self.timers.add(due, value);
            self.keys.push(key);
        }
        started.elapsed()
    }

    /// Inserts `count` entries, then cancels as many random ones. Returns the duration of both.
    fn round(&mut self, count: usize, span: i64, random: &mut Random) -> (Duration, Duration) {
        let inserted = self.insert(count, span, random);
        let chosen: Vec<_> = (0..count)
            .map(|_| {
                let position = random.below(self.keys.len() as i64) as usize;
                self.keys.swap_remove(position)
            })
            .collect();
        let started = Instant::now();
        for key in chosen {
            self.timers.take(key);
        }
        (inserted, started.elapsed())
    }
}

struct Report {
    json: bool,
}

impl Report {
    fn heading(&self) {
        if !self.json {
            println!("{:<70} {:>12} {:>12} {:>6}", "case", "ours", "DelayQueue", "ratio");
        }
    }

    /// Reports the costs of an operation in seconds as rates, and for people also in nanoseconds.
    fn ratio(&self, case: &str, ours: f64, raw: f64) {
        let (ours, raw, ratio) = (1.0 / ours, 1.0 / raw, raw / ours);
        if self.json {
            println!(
                r#"{{"bench":"core","case":"{case}","ours":{ours:.0},"raw":{raw:.0},"ratio":{ratio:.2},"unit":"op/s"}}"#
            );
        } else {
            let nanos = format!("{:.0} ns and {:.0} ns", 1e9 / ours, 1e9 / raw);
            println!("{case:<70} {ours:>12.0} {raw:>12.0} {ratio:>6.2}  op/s, {nanos}");
        }
    }

    fn figure(&self, case: &str, ours: f64, unit: &str) {
        if self.json {
            println!(r#"{{"bench":"core","case":"{case}","ours":{ours:.1},"unit":"{unit}"}}"#);
        } else {
            println!("{case:<70} {ours:>12.1} {:>12} {:>6}  {unit}", "", "");
        }
    }
}

/// Splitmix64.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % bound as u64) as i64
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn short(count: usize) -> String {
    match count {
        1_000_000.. => format!("{}M", count / 1_000_000),
        _ => format!("{}k", count / 1_000),
    }
}
