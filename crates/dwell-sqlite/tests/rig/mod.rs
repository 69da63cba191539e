//! A file for each case, which another process finds by the name of the case.

use dwell_core::{Clock, Result, Seams, Timestamp, VirtualClock};
use dwell_sqlite::{Sqlite, SqliteSettings};
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// One file, open once: every connection to it shares that.
pub struct OneFile {
    pub clock: VirtualClock,
    pub seams: Seams,
    open: Mutex<Option<Opened>>,
}

struct Opened {
    path: PathBuf,
    /// It was not there before: it goes with the rig.
    is_ours: bool,
    sqlite: Sqlite,
}

impl OneFile {
    pub fn new() -> Self {
        let clock = worker_time().map_or_else(VirtualClock::new, VirtualClock::starting_at);
        let seams = Seams::virtual_time(clock.clone(), 1);
        Self { clock, seams, open: Mutex::default() }
    }

    /// A connection to the file of this name. All processes on one machine have one clock, so whoever opens it first
    /// brings the clock.
    pub fn connect(&self, name: &str) -> Result<Sqlite> {
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

    /// Lets time pass, and leaves word of it for workers that are started later: they share the file, so they share the
    /// time.
    pub async fn pass(&self, time: Duration) {
        self.clock.advance(time).await;
        if let Some((path, _)) = self.opened() {
            let _ = std::fs::write(time_of(&path), self.clock.now().0.to_string());
        }
    }

    /// The file, once it is open.
    pub fn opened(&self) -> Option<(PathBuf, Sqlite)> {
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

/// What time it is for a worker: the suite starts this test again, with the name of the case.
fn worker_time() -> Option<Timestamp> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--hold-deliveries").skip(1);
    let path = directory().join(format!("{}.db", arguments.next()?));
    std::fs::read_to_string(time_of(&path)).ok()?.parse().ok().map(Timestamp)
}

fn time_of(path: &Path) -> PathBuf {
    path.with_extension("now")
}

pub fn directory() -> PathBuf {
    let directory = std::env::temp_dir().join("dwell-sqlite-conformance");
    let _ = std::fs::create_dir_all(&directory);
    directory
}

fn remove(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", path.display()));
    }
    let _ = std::fs::remove_file(time_of(path));
}
