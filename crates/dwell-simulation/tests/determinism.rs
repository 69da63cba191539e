//! The same seed gives the same world.

use dwell_simulation::{Executor, Options, run};

fn trace(seed: u64, options: Options) -> String {
    let report = run(seed, options);
    report.trace.iter().map(|entry| format!("{entry}\n")).collect()
}

#[test]
fn same_seed_gives_the_same_trace() {
    for seed in 0..40 {
        for executor in [None, Some(Executor::Proactor), Some(Executor::Inline)] {
            let options = Options { executor, log: Some(seed % 2 == 0), ..Options::default() };
            let (once, twice) = (trace(seed, options), trace(seed, options));
            let first = once.lines().zip(twice.lines()).find(|(a, b)| a != b);
            assert_eq!(once, twice, "seed {seed} differs first in {first:?}");
        }
    }
}

#[test]
fn same_seed_gives_the_same_trace_on_another_thread() {
    let here = trace(7, Options::default());
    let there = std::thread::spawn(|| trace(7, Options::default())).join().unwrap();
    assert_eq!(here, there);
}

#[test]
fn different_seeds_give_different_worlds() {
    assert_ne!(trace(1, Options::default()), trace(2, Options::default()));
}
