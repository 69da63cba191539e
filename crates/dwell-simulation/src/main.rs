//! Runs one world per seed, and reports each broken guarantee.

use clap::Parser;
use dwell_simulation::{Options, Promise, Report, Tally, run, trace};
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write, stderr},
    process::ExitCode,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

/// Number of broken worlds that are reported in full; further ones are only counted.
const MOST_TOLD: usize = 5;

/// Runs the engine in simulated worlds, one for each seed, and checks every guarantee for every
/// message.
#[derive(Parser, Debug)]
#[command(name = "dwell-simulation")]
struct Arguments {
    /// Number of seeds to run
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
    /// Print the whole trace
    #[arg(long)]
    trace: bool,
    /// Number of worlds to run concurrently
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (seeds, from) = (arguments.seeds, arguments.from);
    let next = AtomicU64::new(0);
    let (send, reports) = mpsc::channel();
    let mut sum = Sum::default();
    thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= seeds || send.send(run(from + number, Options::default())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        // Reports in the order of their seeds, whichever finishes first.
        let mut early = BTreeMap::new();
        for report in reports {
            early.insert(report.seed, report);
            while let Some(report) = early.remove(&(from + sum.seeds)) {
                sum.add(&report, arguments.trace);
                progress(sum.seeds, seeds);
            }
        }
    });
    print!("{sum}");
    if sum.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Totals of all worlds so far.
#[derive(Default)]
struct Sum {
    seeds: u64,
    tally: Tally,
    broken: BTreeMap<Promise, u64>,
}

impl Sum {
    fn add(&mut self, report: &Report, with_trace: bool) {
        self.seeds += 1;
        self.tally.add(&report.tally);
        if with_trace {
            report.trace.iter().for_each(|entry| println!("{entry}"));
        }
        let Some(violation) = &report.violation else { return };
        let seed = report.seed;
        let before: u64 = self.broken.values().sum();
        *self.broken.entry(violation.promise).or_default() += 1;
        println!("seed {seed} FAILED: {violation}");
        if before < MOST_TOLD as u64 {
            if !with_trace {
                trace::of_message(&report.trace, &violation.id).for_each(|entry| println!("{entry}"));
            }
            println!(
                "to repeat it: cargo run --release -p dwell-simulation -- --seeds 1 --from {seed} --trace"
            );
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failed: u64 = self.broken.values().sum();
        writeln!(f, "seeds: {}, of which {failed} failed", self.seeds)?;
        write!(f, "{}", self.tally)?;
        let of = |promise| self.broken.get(&promise).copied().unwrap_or_default();
        let unexplained = of(Promise::DuplicatesExplained);
        let explained =
            if unexplained == 0 { "all explained".into() } else { format!("{unexplained} not explained") };
        writeln!(
            f,
            "duplicates: {} ({explained}), early: {}, lost: {}",
            self.tally.duplicates,
            of(Promise::NeverEarly),
            of(Promise::NeverLost)
        )
    }
}

/// Prints a line for each tenth, or a line that is updated on a terminal.
fn progress(done: u64, of: u64) {
    let tenth = |count: u64| count * 10 / of.max(1);
    if stderr().is_terminal() {
        eprint!("\r{done} of {of} seeds");
        if done == of {
            eprintln!();
        }
        let _ = stderr().flush();
    } else if tenth(done) > tenth(done - 1) {
        eprintln!("{done} of {of} seeds");
    }
}
