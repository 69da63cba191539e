//! Worlds in which every guarantee is kept, and a check of their variety.

use dwell_simulation::{Options, Tally, run, trace};

fn tally(seeds: std::ops::Range<u64>, options: Options) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let report = run(seed, options);
        if let Some(violation) = report.violation {
            let lines: Vec<_> =
                trace::of_message(&report.trace, &violation.id).map(ToString::to_string).collect();
            panic!("seed {seed}: {violation}\n{}", lines.join("\n"));
        }
        tally.add(&report.tally);
    }
    tally
}

#[test]
fn guarantees_hold_on_memory_with_faults() {
    let tally = tally(1000..1100, Options { log: Some(false), ..Options::default() });
    assert!(tally.faults() > 100 && tally.duplicates > 10, "too few faults or duplicates: {tally}");
}

#[test]
fn guarantees_hold_on_a_log_with_faults() {
    let tally = tally(2000..2100, Options { log: Some(true), ..Options::default() });
    assert!(tally.faults() > 100 && tally.duplicates > 10, "too few faults or duplicates: {tally}");
}

#[test]
fn every_kind_of_end_is_reached() {
    let tally = tally(3000..3100, Options::default());
    let reached = [
        tally.handled,
        tally.deferred,
        tally.failed,
        tally.dead,
        tally.discarded,
        tally.cancelled,
        tally.parked,
        tally.replayed,
    ];
    assert!(reached.iter().all(|count| *count > 0), "{tally}");
}
