//! Checkpoint thread, which copies the log to the file while the writer thread continues.

use crate::{open, readers::Gate, settings::SqliteSettings};
use std::{
    io,
    sync::{
        Arc, PoisonError,
        mpsc::{self, Receiver, SyncSender},
    },
    thread::{self, JoinHandle},
};

/// Handle to the checkpoint thread. Dropping it waits until the thread has closed its connection.
pub(crate) struct Checkpoints {
    /// `None` once the thread must end.
    queue: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(crate) fn start(settings: Arc<SqliteSettings>, gate: Gate) -> io::Result<Self> {
        // Requests are not queued: one that comes too early is repeated after the next commit.
        let (queue, asked) = mpsc::sync_channel(0);
        let thread = thread::Builder::new()
            .name("dwell-sqlite-cp".to_owned())
            .spawn(move || work(&asked, &settings, &gate))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Requests a checkpoint, unless one is running.
    pub(crate) fn ask(&self) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(());
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs checkpoints on request. A failed one is repeated with the next request; the writer thread
/// limits the length of the log.
fn work(asked: &Receiver<()>, settings: &SqliteSettings, gate: &Gate) {
    let Some(path) = settings.path() else { return };
    let mut open = None;
    for () in asked {
        let _reading = gate.read().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            open = open::open_reader(path, settings).ok();
        }
        let done = open.as_ref().map(|connection| open::checkpoint(connection, "PASSIVE"));
        if let Some(Err(_)) = done {
            open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use crate::open::{Log, checkpoint, open_writer};

    #[test]
    fn log_is_copied_during_a_write_and_the_file_is_closed_at_the_end() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let log = std::path::PathBuf::from(format!("{}-wal", path.display()));
        let settings = Arc::new(SqliteSettings::file(&path));
        let (writer, other) = (open_writer(&settings).unwrap(), open_writer(&settings).unwrap());
        writer
            .execute_batch("CREATE TABLE extra (n); BEGIN IMMEDIATE; INSERT INTO extra VALUES (1)")
            .unwrap();
        let before = checkpoint(&other, "NOOP").unwrap();
        assert!(before.pages > 0 && before.written < before.pages, "{before:?}");
        let checkpoints = Checkpoints::start(settings, Gate::default()).unwrap();
        while checkpoint(&other, "NOOP").unwrap().written < before.pages {
            checkpoints.ask();
            thread::yield_now();
        }
        writer.execute_batch("COMMIT").unwrap();
        let after = checkpoint(&writer, "PASSIVE").unwrap();
        assert_eq!(after, Log { pages: before.pages + 1, written: before.pages + 1 });
        writer.execute_batch("INSERT INTO extra VALUES (2)").unwrap();
        assert_eq!(checkpoint(&other, "NOOP").unwrap().pages, 1, "the log restarts");
        drop((checkpoints, other, writer));
        assert!(path.exists() && !log.exists(), "the last connection leaves one file");
    }
}
