//! Jobs in SQLite, beside the bare transport in the same run.
//!
//! `cargo xtask bench sqlite` also runs it; `--json` prints one object per line, `--smoke` only
//! checks that it runs.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod beside;
mod rate;

use beside::Scale;
use dwell_core::Transport;
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

fn main() {
    beside::run(
        "sqlite",
        Scale { rounds: 9, messages: 40_000 },
        Place::new,
        Place::url,
        async |place, seams| {
            Arc::new(Sqlite::open(SqliteSettings::file(&place.0), seams).expect("the file can be made"))
                as Arc<dyn Transport>
        },
    );
}

/// A database file that is deleted after its round.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
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
