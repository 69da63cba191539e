//! The cases about delays on the memory transport in real time. Its own column runs on a virtual
//! clock, which has no fractions of a millisecond.

use dwell_conformance::{Namespace, Options, Rig, Time, Verdict, run_all};
use dwell_core::{BoxFuture, Result, Seams, Transport, ready};
use dwell_engine::memory::{Memory, MemorySettings};
use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::runtime::Builder;

struct RealTimeRig {
    seams: Seams,
    memory: Memory,
}

impl RealTimeRig {
    fn new() -> Self {
        let seams = Seams::system("suite");
        Self { memory: Memory::new(seams.clone(), MemorySettings::default()), seams }
    }
}

impl Rig for RealTimeRig {
    fn name(&self) -> &str {
        "memory in real time"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Ok(Arc::new(self.memory.clone())))
    }
}

#[test]
fn no_message_in_memory_is_early_by_a_microsecond() {
    // Timers fire once in each millisecond, counted from the start of their runtime, and hide
    // whatever is early at other times.
    for quarter in 0..4 {
        run_cases(quarter);
    }
}

/// Runs the cases on a runtime that begins in this quarter of a millisecond.
#[expect(clippy::disallowed_methods, reason = "real time")]
fn run_cases(quarter: u32) {
    let cases = [
        "no delayed send is early by a microsecond",
        "no deferral and no retry is early by a microsecond",
        "no rescheduled message is early by a microsecond",
        "a delayed send is never early",
        "delays of a millisecond",
    ];
    let options = Options { filters: cases.map(str::to_owned).to_vec(), ..Options::default() };
    let part = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_micros() % 1000;
    while part() / 250 != quarter {
        std::hint::spin_loop();
    }
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let report = runtime.block_on(run_all(RealTimeRig::new, &options, |_| {}));
    assert_eq!(report.cases.len(), cases.len(), "the cases were renamed: {:?}", report.cases);
    let failed: Vec<_> = report.cases.iter().filter(|case| case.verdict != Verdict::Pass).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
