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
    let cases = [
        "no delayed send is early by a microsecond",
        "no deferral and no retry is early by a microsecond",
        "no rescheduled message is early by a microsecond",
        "a delayed send is never early",
        "delays of a millisecond",
    ];
    let options = Options { filters: cases.map(str::to_owned).to_vec(), ..Options::default() };
    let report = run_all(RealTimeRig::new, &options, |_| {}).await;
    assert_eq!(report.cases.len(), cases.len(), "the cases were renamed: {:?}", report.cases);
    let failed: Vec<_> = report.cases.iter().filter(|case| case.verdict != Verdict::Pass).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
