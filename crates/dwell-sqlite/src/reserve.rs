//! Space reserved for settling: a file beside the database, which is removed when the disk is full.
//!
//! On a full disk the log cannot be copied to the database, because the database cannot grow, so no
//! change at all would be possible. The space freed here is enough to empty the log. From then on
//! the log is reused, and stored messages can be processed. Users may send again once the space is
//! reserved again.
//!
//! Before each commit it is checked that the reserve covers the bytes that the log would add to the
//! database, plus some working space. If the reserve cannot grow that far, no new messages are
//! accepted before the log is emptied. A separate thread enlarges the reserve before that is
//! needed, so that a commit seldom waits for it.

use dwell_core::{Random, SeededRandom};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Minimum size, and the step in which it grows.
const SIZE: u64 = 4 << 20;

/// Part of the reserve that is not counted against the growth of the log, since delivering and
/// settling add to it too.
const SPARE: u64 = 2 << 20;

/// Maximum size. More than this would only be added by a log that a reader keeps from being
/// emptied, and no reserve helps against that.
const MOST: u64 = 64 << 20;

/// The reserve grows ahead of time if the log may add no more than this before the reserve is too
/// small.
const AHEAD: u64 = 1 << 20;

/// Size of one write. No file system compresses larger units.
const PIECE: usize = 1 << 20;

/// Minimum block size of common file systems.
const BLOCK: usize = 4 << 10;

/// Interval between attempts to reserve the space again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// `None` for a database in memory.
    path: Option<PathBuf>,
    is_taken: bool,
    /// Its size in bytes.
    size: u64,
    tried: Duration,
    /// Thread that enlarges it.
    growing: Option<JoinHandle<io::Result<u64>>>,
    /// Set if enlarging it ahead of time has failed.
    is_narrow: bool,
}

impl Reserve {
    /// Creates the reserve beside this file.
    pub(crate) fn beside(database: Option<&Path>) -> Self {
        let path = database.map(|database| {
            let mut path = database.as_os_str().to_owned();
            path.push("-reserve");
            PathBuf::from(path)
        });
        let mut reserve = Self { is_taken: path.is_none(), path, ..Self::default() };
        reserve.take();
        reserve
    }

    /// Returns whether space is reserved.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Frees the space. Returns whether there was any.
    pub(crate) fn release(&mut self) -> bool {
        self.wait();
        let Some(path) = self.path.as_ref().filter(|_| self.is_taken) else { return false };
        self.is_taken = false;
        fs::remove_file(path).is_ok()
    }

    /// Returns how many bytes the log may add to the database while the reserve is large enough.
    fn covers(&self) -> u64 {
        if self.path.is_some() && self.is_taken { self.size.saturating_sub(SPARE) } else { u64::MAX }
    }

    /// Returns whether the reserve is large enough, with a margin, if the log would add this many
    /// bytes.
    pub(crate) fn is_plenty(&self, growth: u64) -> bool {
        growth.saturating_add(AHEAD) <= self.covers()
    }

    /// Ensures that the reserve covers this growth of the database, and enlarges it ahead of time.
    /// Returns whether it does.
    pub(crate) fn cover(&mut self, growth: u64) -> bool {
        if growth > self.covers() || self.growing.as_ref().is_some_and(JoinHandle::is_finished) {
            self.wait();
        }
        let wanted = |growth: u64| growth.saturating_add(SPARE).next_multiple_of(SIZE);
        let Some(path) = self.path.as_ref().filter(|_| !self.is_plenty(growth)) else { return true };
        if growth > self.covers() && wanted(growth) <= MOST {
            let grown = grow(path, wanted(growth));
            self.size = *grown.as_ref().unwrap_or(&self.size);
            return grown.is_ok();
        }
        let (path, size) = (path.clone(), wanted(growth.saturating_add(AHEAD)));
        if self.growing.is_none() && !self.is_narrow && size <= MOST {
            let thread = thread::Builder::new().name("dwell-sqlite-rs".to_owned());
            self.growing = thread.spawn(move || grow(&path, size)).ok();
        }
        true
    }

    /// Waits until the growing thread has finished.
    fn wait(&mut self) {
        match self.growing.take().map(JoinHandle::join) {
            Some(Ok(Ok(size))) => self.size = size,
            Some(_) => self.is_narrow = true,
            None => {}
        }
    }

    /// Checks periodically whether another process has freed the space, and reserves it again if
    /// there is plenty of room.
    pub(crate) fn take_again(&mut self, elapsed: Duration) {
        if elapsed.saturating_sub(self.tried) < AGAIN {
            return;
        }
        self.tried = elapsed;
        self.wait();
        self.is_narrow = false;
        if let Some(path) = &self.path {
            let there = fs::metadata(path).map_or(0, |there| there.len());
            (self.is_taken, self.size) = (self.is_taken && there >= SIZE, there);
        }
        self.take();
    }

    fn take(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| !self.is_taken) else { return };
        if let Some(there) = fs::metadata(path).ok().filter(|there| there.len() >= SIZE) {
            (self.is_taken, self.size) = (true, there.len());
            return;
        }
        match fill(path) {
            Ok(()) => (self.is_taken, self.size) = (true, SIZE),
            Err(error) => {
                let _ = fs::remove_file(path);
                tracing::debug!(reserve = %path.display(), %error, "no room to reserve for settling");
            }
        }
    }
}

/// Writes twice the minimum size, then truncates the file, so that some space is left to work with.
fn fill(path: &Path) -> io::Result<()> {
    File::create(path)?;
    grow(path, 2 * SIZE)?;
    File::options().write(true).open(path)?.set_len(SIZE)
}

/// Enlarges the file to this size. Returns its size; on failure the file keeps its former size.
fn grow(path: &Path, size: u64) -> io::Result<u64> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    // Zeros would take no space on a file system that compresses, and freeing them would free none.
    // The piece is random, and each of its blocks is changed for each write, because some file
    // systems store equal blocks once.
    let (random, mut piece) = (SeededRandom::from_system(), vec![0; PIECE]);
    vary(&mut piece, size_of::<u64>(), &random);
    for _ in 0..size.saturating_sub(before).div_ceil(PIECE as u64) {
        vary(&mut piece, BLOCK, &random);
        if let Err(error) = file.write_all(&piece) {
            file.set_len(before)?;
            return Err(error);
        }
    }
    Ok(file.metadata()?.len())
}

/// Starts each part of this length with a new random number.
fn vary(bytes: &mut [u8], each: usize, random: &SeededRandom) {
    for part in bytes.chunks_exact_mut(each) {
        part[..size_of::<u64>()].copy_from_slice(&random.next().to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use std::collections::HashSet;

    #[test]
    fn reserve_is_released_once_and_taken_again_later() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let length = || fs::metadata(directory.path().join("dwell.db-reserve")).map_or(0, |file| file.len());
        let mut reserve = Reserve::beside(Some(&path));
        assert!(reserve.is_taken() && length() == SIZE);
        assert!(reserve.release() && !reserve.release());
        assert_eq!(length(), 0);
        reserve.take_again(AGAIN / 2);
        assert!(!reserve.is_taken(), "not at once, to avoid releasing and taking it in turns");
        reserve.take_again(AGAIN);
        assert!(reserve.is_taken() && length() == SIZE);
        assert!(Reserve::beside(Some(&path)).is_taken(), "all processes share the reserve");
        fs::remove_file(directory.path().join("dwell.db-reserve")).unwrap();
        reserve.take_again(AGAIN * 2);
        assert!(reserve.is_taken() && length() == SIZE, "another process has removed it");
        fs::remove_dir_all(directory.path()).unwrap();
        reserve.take_again(AGAIN * 3);
        assert!(!reserve.is_taken(), "the directory is gone");
    }

    #[test]
    fn reserve_covers_the_growth_by_the_log_and_some_more() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let length = || fs::metadata(directory.path().join("dwell.db-reserve")).map_or(0, |file| file.len());
        let mut reserve = Reserve::beside(Some(&path));
        assert!(reserve.cover(SPARE - AHEAD) && reserve.growing.is_none(), "the minimum size is enough");
        assert!(reserve.cover(SPARE));
        reserve.wait();
        assert_eq!(length(), 2 * SIZE, "it grows before that is needed");
        assert!(reserve.cover(2 * SIZE) && length() == 3 * SIZE, "it grows at once if needed");
        assert!(
            reserve.cover(3 * SIZE - SPARE) && reserve.release() && length() == 0,
            "released even while it is growing"
        );
        reserve.take_again(AGAIN);
        assert!(reserve.cover(SIZE) && length() == 2 * SIZE);
        assert_eq!(reserve.covers(), 2 * SIZE - SPARE);
        assert_eq!(
            Reserve::beside(Some(&path)).covers(),
            reserve.covers(),
            "all processes share the reserve"
        );
        assert!(reserve.cover(MOST) && length() == 2 * SIZE, "it does not exceed its maximum size");
        assert!(
            reserve.release() && reserve.cover(SIZE) && length() == 0,
            "a released reserve is not taken by `cover`"
        );
    }

    #[test]
    fn content_can_be_neither_compressed_nor_deduplicated() {
        let directory = Directory::new();
        let mut reserve = Reserve::beside(Some(&directory.path().join("dwell.db")));
        assert!(reserve.cover(SIZE), "it has grown");
        let bytes = fs::read(directory.path().join("dwell.db-reserve")).unwrap();
        assert_eq!(bytes.len() as u64, 2 * SIZE);
        let blocks: HashSet<_> = bytes.chunks(BLOCK).collect();
        assert_eq!(blocks.len(), bytes.len() / BLOCK, "all blocks differ");
        for piece in [&bytes[..PIECE], &bytes[bytes.len() - PIECE..]] {
            let numbers: HashSet<_> = piece.chunks(8).collect();
            assert_eq!(numbers.len(), PIECE / 8, "no number is repeated within a piece");
            let mut counts = [0; 256];
            piece.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
            let usual = PIECE / counts.len();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(
                usual * 3 / 4 < *least && *most < usual * 5 / 4,
                "the bytes are evenly distributed: {counts:?}"
            );
        }
    }

    #[test]
    fn database_in_memory_needs_no_reserve() {
        let mut reserve = Reserve::beside(None);
        assert!(reserve.is_taken() && reserve.cover(MOST) && !reserve.release());
    }
}
