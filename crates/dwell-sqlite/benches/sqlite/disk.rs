//! A directory on the disk that is measured, and how long that disk takes to have something.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

/// A path for one file, and those that SQLite puts beside it: removed at the end.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-{}-{number}.db", std::process::id());
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

/// How long the disk takes to have a page that is appended to a file, in milliseconds; some samples.
pub(crate) fn syncs(count: usize) -> Vec<f64> {
    let place = Place::new();
    let mut file = File::create(place.path()).expect("the directory can be written");
    let page = [7; 4096];
    let sync = || {
        let start = Instant::now();
        file.write_all(&page).expect("there is room");
        file.sync_data().expect("the disk works");
        start.elapsed().as_secs_f64() * 1000.0
    };
    std::iter::repeat_with(sync).take(count).collect()
}
