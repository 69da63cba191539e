//! A file for each case, which another process finds by the name of the case.

mod suite;

#[allow(unused_imports, reason = "the log has a rig of its own")]
pub(crate) use suite::SqliteRig;

use dwell_core::{Result, Seams, VirtualClock};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

/// One file, open once: every connection to it shares that.
pub(crate) struct OneFile {
    pub(crate) clock: VirtualClock,
    pub(crate) seams: Seams,
    open: Mutex<Option<Opened>>,
}

struct Opened {
    path: PathBuf,
    /// It was not there before: it goes with the rig.
    is_ours: bool,
    sqlite: Sqlite,
}

impl OneFile {
    pub(crate) fn new(clock: VirtualClock) -> Self {
        let seams = Seams::virtual_time(clock.clone(), 1);
        Self { clock, seams, open: Mutex::default() }
    }

    /// A connection to the file of this name. All processes on one machine have one clock, so whoever opens it first
    /// brings the clock.
    pub(crate) fn connect(&self, name: &str) -> Result<Sqlite> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*open {
            return Ok(open.sqlite.share());
        }
        let path = directory().join(format!("{name}.db"));
        let is_ours = !path.exists();
        let settings = SqliteSettings { max_body: 1 << 20, ..SqliteSettings::file(&path) };
        let sqlite = Sqlite::open(settings, self.seams.clone())?;
        let connection = sqlite.share();
        *open = Some(Opened { path, is_ours, sqlite });
        Ok(connection)
    }

    /// The file, once it is open.
    pub(crate) fn opened(&self) -> Option<(PathBuf, Sqlite)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| (open.path.clone(), open.sqlite.clone()))
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Opened { path, is_ours: true, sqlite }) = open {
            drop(sqlite);
            remove(&path);
        }
    }
}

/// Whether the suite has started this process.
fn is_worker() -> bool {
    std::env::args().any(|argument| argument == "--hold-deliveries")
}

/// That of the suite, whichever of its processes asks.
pub(crate) fn directory() -> PathBuf {
    let suite = if is_worker() { std::os::unix::process::parent_id() } else { std::process::id() };
    let directory = std::env::temp_dir().join(format!("dwell-sqlite-conformance-{suite}"));
    let _ = std::fs::create_dir_all(&directory);
    directory
}

/// Runs the suite, which leaves nothing behind.
pub(crate) fn run(suite: impl FnOnce() -> ExitCode) -> ExitCode {
    let ended = suite();
    if !is_worker() {
        let _ = std::fs::remove_dir_all(directory());
    }
    ended
}

fn remove(path: &Path) {
    for end in ["", "-wal", "-shm", "-reserve", ".now"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
}
