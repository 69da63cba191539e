//! Log of bare SQLite, kept as short as that of the transport and in the same way: a checkpoint
//! thread copies it to the file, so that no commit waits for that, and the remainder is copied
//! inline.

use rusqlite::Connection;
use std::{
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread::{self, JoinHandle},
};

/// The limits of the transport, in pages.
const LONG: i64 = 8192;
const LONGEST: i64 = 12288;
const SOME: i64 = 2048;
const FEW: i64 = 512;

pub(crate) struct RawLog {
    /// `None` once the thread must end.
    queue: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RawLog {
    pub(crate) fn of(path: &Path) -> Self {
        let (queue, asked) = mpsc::sync_channel(0);
        let connection = Connection::open(path).expect("the file exists");
        let thread = thread::spawn(move || work(&connection, &asked));
        Self { queue: Some(queue), thread: Some(thread) }
    }

    /// Runs after each commit.
    pub(crate) fn keep_short(&self, connection: &Connection) {
        let (pages, written) = checkpoint(connection, "NOOP");
        match pages - written {
            0 => {}
            _ if pages < LONG => {}
            left if left <= FEW || left < LONG && pages >= LONGEST => drop(checkpoint(connection, "PASSIVE")),
            left if left > SOME && left < LONG => {}
            // Ignored if a checkpoint is running.
            _ => drop(self.queue.as_ref().map(|queue| queue.try_send(()))),
        }
    }
}

impl Drop for RawLog {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(connection: &Connection, asked: &Receiver<()>) {
    for () in asked {
        checkpoint(connection, "PASSIVE");
    }
}

/// Returns the number of pages in the log, and how many of them are in the file.
fn checkpoint(connection: &Connection, mode: &str) -> (i64, i64) {
    let run = || {
        let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
        statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
    };
    run().unwrap_or_else(|error: rusqlite::Error| panic!("the checkpoint failed: {error}"))
}
