//! The suite's cases about short delays, in real time. The conformance column runs on a virtual
//! clock, which has no fractions of a millisecond.

use dwell_conformance::{Namespace, Options, Rig, Time, Verdict, run_all};
use dwell_core::{BoxFuture, Result, Seams, Transport, ready};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::sync::Arc;

struct RealTimeRig {
    seams: Seams,
    sqlite: Sqlite,
}

impl RealTimeRig {
    fn new() -> Self {
        let seams = Seams::system("suite");
        Self { sqlite: Sqlite::open(SqliteSettings::memory(), seams.clone()).unwrap(), seams }
    }
}

impl Rig for RealTimeRig {
    fn name(&self) -> &str {
        "sqlite in real time"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn seams(&self) -> Seams {
        self.seams.clone()
    }

    fn connect<'a>(&'a self, _: &'a Namespace, _: Seams) -> BoxFuture<'a, Result<Arc<dyn Transport>>> {
        ready(Ok(Arc::new(self.sqlite.share())))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_early_by_a_microsecond() {
    let filters = ["microsecond", "never early", "a millisecond is waited for"].map(str::to_owned).to_vec();
    let report = run_all(RealTimeRig::new, &Options { filters, ..Options::default() }, |_| {}).await;
    assert!(report.cases.len() >= 3, "a filter matches no case; was it renamed?");
    let failed: Vec<_> = report.cases.iter().filter(|case| case.verdict != Verdict::Pass).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
