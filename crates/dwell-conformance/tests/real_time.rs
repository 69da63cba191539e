//! The cases about delays on the memory transport in real time. Its own column runs on a virtual
//! clock, which has no fractions of a millisecond.

use dwell_conformance::{Namespace, Options, Rig, Time, Verdict, run_all};
use dwell_core::{BoxFuture, Result, Seams, Transport, ready};
use dwell_engine::memory::{Memory, MemorySettings};
use std::sync::Arc;

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

#[tokio::test(flavor = "multi_thread")]
async fn no_message_in_memory_is_early_by_a_microsecond() {
    let filters = ["microsecond", "never early", "delays of a millisecond"].map(str::to_owned).to_vec();
    let report = run_all(RealTimeRig::new, &Options { filters, ..Options::default() }, |_| {}).await;
    assert!(report.cases.len() >= 3, "the cases were renamed");
    let failed: Vec<_> = report.cases.iter().filter(|case| case.verdict != Verdict::Pass).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
