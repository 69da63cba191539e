//! Directory on the measured disk, and the sync latency of that disk.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

/// Path of one file and the files that SQLite creates beside it. They are removed on drop.
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

/// Returns samples of the time to append and sync one page, in milliseconds.
pub(crate) fn syncs(count: usize) -> Vec<f64> {
    let place = Place::new();
    let mut file = File::create(place.path()).expect("the directory is writable");
    let page = [7; 4096];
    let sync = || {
        let start = Instant::now();
        file.write_all(&page).expect("the disk has room");
        file.sync_data().expect("the sync succeeds");
        start.elapsed().as_secs_f64() * 1000.0
    };
    std::iter::repeat_with(sync).take(count).collect()
}
