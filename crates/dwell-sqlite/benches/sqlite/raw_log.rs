//! The log of bare SQLite, kept as short as ours and in the same way: written into the file by a thread of its own, so that no
//! commit waits for that, and the last of it by the way.

use rusqlite::Connection;
use std::{
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread::{self, JoinHandle},
};

/// In pages, as the transport has them.
const LONG: i64 = 8192;
const LONGEST: i64 = 12288;
const SOME: i64 = 2048;
const FEW: i64 = 512;

pub(crate) struct RawLog {
    /// `None` once it is to end.
    queue: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RawLog {
    pub(crate) fn of(path: &Path) -> Self {
        let (queue, asked) = mpsc::sync_channel(0);
        let connection = Connection::open(path).expect("the file is there");
        let thread = thread::spawn(move || work(&connection, &asked));
        Self { queue: Some(queue), thread: Some(thread) }
    }

    /// After a commit.
    pub(crate) fn keep_short(&self, connection: &Connection) {
        let (pages, written) = checkpoint(connection, "NOOP");
        match pages - written {
            0 => {}
            _ if pages < LONG => {}
            left if left <= FEW || left < LONG && pages >= LONGEST => drop(checkpoint(connection, "PASSIVE")),
            left if left > SOME && left < LONG => {}
            // Unless it is being done.
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

/// How many pages are in the log, and how many of them in the file.
fn checkpoint(connection: &Connection, mode: &str) -> (i64, i64) {
    let run = || {
        let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
        statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
    };
    run().unwrap_or_else(|error: rusqlite::Error| panic!("the log can be written into the file: {error}"))
}
