//! Room that is kept for settling: a file beside the database, which is let go when the disk is full.
//!
//! On a full disk the log cannot be written into the file, because the file cannot grow, and so nothing at all could be
//! changed. What is let go here is enough to empty the log; from then on the log is used again and again, and what is there
//! can be handled. Users may send again when the room was taken anew.
//!
//! That it is enough is seen to before each commit: what the log would add to the file, and some more to work with, is kept
//! here, and if there is no room for that, nothing new comes in before the log was emptied. Another thread writes it, before
//! it is needed, so that a commit seldom waits for that.

use dwell_core::{Random, SeededRandom};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

/// What is kept at least, and what it grows by.
const SIZE: u64 = 4 << 20;

/// So much of it is beside what the log would add to the file: to hand out and to settle adds to that, too.
const SPARE: u64 = 2 << 20;

/// It does not become larger than this. Only a log that a reader keeps from being emptied would add more to the file, and
/// no room helps against that.
const MOST: u64 = 64 << 20;

/// If the log may add no more than this before it is not enough, it grows: a few large commits.
const AHEAD: u64 = 1 << 20;

/// It is written in pieces of this size. File systems compress no more than that at once.
const PIECE: usize = 1 << 20;

/// No block of a file system is smaller.
const BLOCK: usize = 4 << 10;

/// How often it is tried to take the room again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// `None` for what is in memory.
    path: Option<PathBuf>,
    is_taken: bool,
    /// How large it is.
    size: u64,
    tried: Duration,
    /// The thread that makes it larger.
    growing: Option<JoinHandle<io::Result<u64>>>,
    /// There was no room to make it larger before that is needed.
    is_narrow: bool,
}

impl Reserve {
    /// Beside this file.
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

    /// Whether there is room that could be let go.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Lets the room go. Returns whether there was any.
    pub(crate) fn release(&mut self) -> bool {
        self.wait();
        let Some(path) = self.path.as_ref().filter(|_| self.is_taken) else { return false };
        self.is_taken = false;
        fs::remove_file(path).is_ok()
    }

    /// What the log may add to the file, so that what is kept is still enough.
    fn covers(&self) -> u64 {
        if self.path.is_some() && self.is_taken { self.size.saturating_sub(SPARE) } else { u64::MAX }
    }

    /// Whether it is enough, and for some time, if the log would add so much to the file.
    pub(crate) fn is_plenty(&self, growth: u64) -> bool {
        growth.saturating_add(AHEAD) <= self.covers()
    }

    /// The log would add so much to the file: keeps as much, if there is room for it, and soon some more.
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

    /// Nobody makes it larger any more.
    fn wait(&mut self) {
        match self.growing.take().map(JoinHandle::join) {
            Some(Ok(Ok(size))) => self.size = size,
            Some(_) => self.is_narrow = true,
            None => {}
        }
    }

    /// Sees now and then whether another process has let it go, and takes it again if there is plenty of room.
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
                tracing::debug!(reserve = %path.display(), %error, "there is no room to keep for settling");
            }
        }
    }
}

/// Twice as much as is needed, so that something is left to work with.
fn fill(path: &Path) -> io::Result<()> {
    File::create(path)?;
    grow(path, 2 * SIZE)?;
    File::options().write(true).open(path)?.set_len(SIZE)
}

/// Makes it so large, unless it is, and says how large it is; or leaves it as it was.
fn grow(path: &Path, size: u64) -> io::Result<u64> {
    let mut file = File::options().create(true).append(true).open(path)?;
    let before = file.metadata()?.len();
    // Zeros would take no room on a file system that compresses, and to let go of them would free none. One piece is made up,
    // and then changed in each of its blocks, because others keep equal blocks once.
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

/// Begins each part of so many bytes with a new number.
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
    fn room_is_let_go_once_and_taken_again_after_a_while() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let length = || fs::metadata(directory.path().join("dwell.db-reserve")).map_or(0, |file| file.len());
        let mut reserve = Reserve::beside(Some(&path));
        assert!(reserve.is_taken() && length() == SIZE);
        assert!(reserve.release() && !reserve.release());
        assert_eq!(length(), 0);
        reserve.take_again(AGAIN / 2);
        assert!(!reserve.is_taken(), "not at once: it would be let go and taken in turns");
        reserve.take_again(AGAIN);
        assert!(reserve.is_taken() && length() == SIZE);
        assert!(Reserve::beside(Some(&path)).is_taken(), "it is one for all processes");
        fs::remove_file(directory.path().join("dwell.db-reserve")).unwrap();
        reserve.take_again(AGAIN * 2);
        assert!(reserve.is_taken() && length() == SIZE, "another process has let it go, or was closed");
        fs::remove_dir_all(directory.path()).unwrap();
        reserve.take_again(AGAIN * 3);
        assert!(!reserve.is_taken(), "there is no directory to take it in");
    }

    #[test]
    fn as_much_is_kept_as_the_log_would_add_to_the_file_and_some_more() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let length = || fs::metadata(directory.path().join("dwell.db-reserve")).map_or(0, |file| file.len());
        let mut reserve = Reserve::beside(Some(&path));
        assert!(reserve.cover(SPARE - AHEAD) && reserve.growing.is_none(), "that is kept anyway");
        assert!(reserve.cover(SPARE));
        reserve.wait();
        assert_eq!(length(), 2 * SIZE, "before it is needed");
        assert!(reserve.cover(2 * SIZE) && length() == 3 * SIZE, "at once, if it is needed");
        assert!(reserve.cover(3 * SIZE - SPARE) && reserve.release() && length() == 0, "whoever is at it");
        reserve.take_again(AGAIN);
        assert!(reserve.cover(SIZE) && length() == 2 * SIZE);
        assert_eq!(reserve.covers(), 2 * SIZE - SPARE);
        assert_eq!(Reserve::beside(Some(&path)).covers(), reserve.covers(), "it is one for all processes");
        assert!(reserve.cover(MOST) && length() == 2 * SIZE, "there is an end to it");
        assert!(
            reserve.release() && reserve.cover(SIZE) && length() == 0,
            "what was let go is not taken by the way"
        );
    }

    #[test]
    fn no_file_system_stores_it_in_less_room() {
        let directory = Directory::new();
        let mut reserve = Reserve::beside(Some(&directory.path().join("dwell.db")));
        assert!(reserve.cover(SIZE), "it has grown");
        let bytes = fs::read(directory.path().join("dwell.db-reserve")).unwrap();
        assert_eq!(bytes.len() as u64, 2 * SIZE);
        let blocks: HashSet<_> = bytes.chunks(BLOCK).collect();
        assert_eq!(blocks.len(), bytes.len() / BLOCK, "no block is like another");
        for piece in [&bytes[..PIECE], &bytes[bytes.len() - PIECE..]] {
            let numbers: HashSet<_> = piece.chunks(8).collect();
            assert_eq!(numbers.len(), PIECE / 8, "nothing comes again within what is compressed at once");
            let mut counts = [0; 256];
            piece.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
            let usual = PIECE / counts.len();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(usual * 3 / 4 < *least && *most < usual * 5 / 4, "all bytes are as frequent: {counts:?}");
        }
    }

    #[test]
    fn what_is_in_memory_needs_none() {
        let mut reserve = Reserve::beside(None);
        assert!(reserve.is_taken() && reserve.cover(MOST) && !reserve.release());
    }
}
