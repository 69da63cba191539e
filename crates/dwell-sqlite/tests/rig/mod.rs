//! One file for each conformance case, named after the case so that another process finds it.

mod suite;

#[allow(unused_imports, reason = "the log column has a separate rig")]
pub(crate) use suite::SqliteRig;

use dwell_core::{Result, Seams, VirtualClock};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

/// File that is opened once and shared by all connections.
pub(crate) struct OneFile {
    pub(crate) clock: VirtualClock,
    pub(crate) seams: Seams,
    open: Mutex<Option<Opened>>,
}

struct Opened {
    path: PathBuf,
    /// Set if the file did not exist before: it is then removed with the rig.
    is_ours: bool,
    sqlite: Sqlite,
}

impl OneFile {
    pub(crate) fn new(clock: VirtualClock) -> Self {
        let seams = Seams::virtual_time(clock.clone(), 1);
        Self { clock, seams, open: Mutex::default() }
    }

    /// Returns a connection to the file of this name. All processes on one machine share a clock,
    /// so the clock comes from the first one to open the file.
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

    /// Returns the path and the transport of the file, once it is open.
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

/// Returns whether this process was started by the suite.
fn is_worker() -> bool {
    std::env::args().any(|argument| argument == "--hold-deliveries")
}

/// Returns the directory of the suite, which its worker processes share.
pub(crate) fn directory() -> PathBuf {
    let suite = if is_worker() { std::os::unix::process::parent_id() } else { std::process::id() };
    let directory = std::env::temp_dir().join(format!("dwell-sqlite-conformance-{suite}"));
    let _ = std::fs::create_dir_all(&directory);
    directory
}

/// Runs the suite, and removes its directory.
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
