//! Room that is kept for settling: a file beside the database, which is let go when the disk is full.
//!
//! On a full disk the log cannot be written into the file, because the file cannot grow, and so nothing at all could be
//! changed. What is let go here is enough to empty the log; from then on the log is used again and again, and what is there
//! can be handled. Users may send again when the room was taken anew.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// About what one emptying of the log may add to the file.
const SIZE: u64 = 4 << 20;

/// How often it is tried to take the room again.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// `None` for what is in memory.
    path: Option<PathBuf>,
    is_taken: bool,
    tried: Duration,
}

impl Reserve {
    /// Beside this file.
    pub(crate) fn beside(database: Option<&Path>) -> Self {
        let path = database.map(|database| {
            let mut path = database.as_os_str().to_owned();
            path.push("-reserve");
            PathBuf::from(path)
        });
        let mut reserve = Self { is_taken: path.is_none(), path, tried: Duration::ZERO };
        reserve.take();
        reserve
    }

    /// Whether there is room that could be let go.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Lets the room go. Returns whether there was any.
    pub(crate) fn release(&mut self) -> bool {
        let Some(path) = self.path.as_ref().filter(|_| self.is_taken) else { return false };
        self.is_taken = false;
        fs::remove_file(path).is_ok()
    }

    /// Another process may have let it go.
    pub(crate) fn check(&mut self) {
        if let Some(path) = &self.path {
            self.is_taken = path.exists();
        }
    }

    /// Takes the room again, if there is plenty; now and then.
    pub(crate) fn take_again(&mut self, elapsed: Duration) {
        if !self.is_taken && elapsed.saturating_sub(self.tried) >= AGAIN {
            self.tried = elapsed;
            self.take();
        }
    }

    fn take(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| !self.is_taken) else { return };
        if fs::metadata(path).is_ok_and(|there| there.len() == SIZE) {
            self.is_taken = true;
            return;
        }
        match fill(path) {
            Ok(()) => self.is_taken = true,
            Err(error) => {
                let _ = fs::remove_file(path);
                tracing::debug!(reserve = %path.display(), %error, "there is no room to keep for settling");
            }
        }
    }
}

/// Twice as much as is needed, so that something is left to work with.
fn fill(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let zeros = vec![0; 64 << 10];
    for _ in 0..2 * SIZE / zeros.len() as u64 {
        file.write_all(&zeros)?;
    }
    file.set_len(SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

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
        fs::remove_dir_all(directory.path()).unwrap();
        reserve.check();
        assert!(!reserve.is_taken());
        reserve.take_again(AGAIN * 2);
        assert!(!reserve.is_taken(), "there is no directory to take it in");
    }

    #[test]
    fn what_is_in_memory_needs_none() {
        let mut reserve = Reserve::beside(None);
        assert!(reserve.is_taken() && !reserve.release());
    }
}
