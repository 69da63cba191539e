//! Jobs in SQLite, beside the transport that carries them, in the same run.
//!
//! `cargo xtask bench sqlite` runs it, too; `--json` prints one object per line, `--smoke` only shows that it works.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod rate;

use dwell_bench::Output;
use dwell_core::Seams;
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{path::PathBuf, sync::Arc};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let (rounds, messages) = if has("--smoke") { (1, 2_000) } else { (9, 40_000) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let (mut beside_commands, mut beside_bare) = (vec![], vec![]);
    runtime.expect("a runtime can be started").block_on(async {
        for round in 0..rounds {
            let [ours, sent, bare] = [0, 1, 2].map(|part| Place::new(3 * round + part));
            let jobs = rate::jobs(&ours.url(), messages).await;
            beside_commands.push((jobs, rate::commands(&sent.url(), messages).await));
            let seams = Seams::system("bench");
            let sqlite =
                Sqlite::open(SqliteSettings::file(&bare.0), seams.clone()).expect("the file can be made");
            beside_bare.push((jobs, rate::transport(Arc::new(sqlite), &seams, messages).await));
        }
    });
    let output = Output { bench: "sqlite", json: has("--json") };
    output.rates("jobs, submitted to completed with a result / commands", beside_commands);
    output.rates("jobs, submitted to completed with a result / bare transport", beside_bare);
}

/// A file that goes with its round.
struct Place(PathBuf);

impl Place {
    fn new(number: usize) -> Self {
        let name = format!("dwell-bench-jobs-{}-{number}.db", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.0.display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm", "-reserve", ".now"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}
