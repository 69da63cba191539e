//! Worlds in which every promise is kept, and what they are made of.

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
fn every_promise_is_kept_on_memory_whatever_goes_wrong() {
    let tally = tally(1000..1100, Options { log: Some(false), ..Options::default() });
    assert!(tally.faults() > 100 && tally.duplicates > 10, "too little went wrong: {tally}");
}

#[test]
fn every_promise_is_kept_on_a_log_whatever_goes_wrong() {
    let tally = tally(2000..2100, Options { log: Some(true), ..Options::default() });
    assert!(tally.faults() > 100 && tally.duplicates > 10, "too little went wrong: {tally}");
}

#[test]
fn every_end_that_a_message_can_come_to_is_reached() {
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
