//! Reader threads beside the writer thread: a long ledger query blocks no writes.

use crate::{
    fault::{Sql, fault},
    open,
    settings::SqliteSettings,
};
use dwell_core::{Busy, Clock, Error, ErrorKind, Result};
use rusqlite::Connection;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};
use tokio::sync::oneshot;

/// Number of reader threads: while one runs a long query, another is free.
const THREADS: usize = 2;

/// Held for reading by an active reader, and for writing by the writer while no reader may be
/// active.
pub(crate) type Gate = Arc<RwLock<()>>;

type Job = Box<dyn FnOnce(Result<&Connection>) + Send>;

/// Handle to the reader threads.
pub(crate) struct Readers {
    clock: Arc<dyn Clock>,
    /// `None` after `close`.
    queue: Mutex<Option<Sender<Job>>>,
    /// Changes when the file is reopened: each thread then opens a new connection.
    epoch: Arc<AtomicU64>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Readers {
    pub(crate) fn start(
        path: &Path,
        settings: &Arc<SqliteSettings>,
        clock: &Arc<dyn Clock>,
        gate: &Gate,
    ) -> Result<Self> {
        let (queue, jobs) = mpsc::channel();
        let (jobs, epoch) = (Arc::new(Mutex::new(jobs)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (jobs, epoch, settings, path) =
                (jobs.clone(), epoch.clone(), settings.clone(), path.to_owned());
            let gate = gate.clone();
            let started = thread::Builder::new()
                .name("dwell-sqlite-reader".to_owned())
                .spawn(move || work(&jobs, &epoch, &gate, &path, &settings));
            threads.push(started.map_err(|error| {
                Error::new(ErrorKind::Unavailable, "could not start a reader thread for the file")
                    .with_source(error)
            })?);
        }
        let (queue, threads) = (Mutex::new(Some(queue)), Mutex::new(threads));
        Ok(Self { clock: clock.clone(), queue, epoch, threads })
    }

    /// Runs `work` on one snapshot of the committed data. `None` if the readers were closed.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Sql<T> + Send + 'static,
        name: Arc<str>,
    ) -> Option<Result<T>> {
        let (answer, answered) = oneshot::channel();
        let busy: Busy = self.clock.busy();
        let job: Job = Box::new(move |connection| {
            let read = connection.and_then(|connection| {
                let at_once = connection.unchecked_transaction();
                let read = at_once.and_then(|at_once| work(&at_once));
                read.map_err(|error| fault(&name, error))
            });
            let _ = answer.send(read);
            drop(busy);
        });
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        queue?.send(job).ok()?;
        answered.await.ok()
    }

    /// Makes each thread reopen the file before its next job.
    pub(crate) fn reopen(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the threads, and waits until they have closed their connections. Pending jobs are short
    /// by then.
    pub(crate) fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, epoch: &AtomicU64, gate: &Gate, path: &Path, settings: &SqliteSettings) {
    let name = settings.location.to_string();
    let mut open: Option<(u64, Connection)> = None;
    loop {
        // The thread with the lock waits for the next job; the others wait for the lock.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let current = epoch.load(Ordering::SeqCst);
        if open.as_ref().is_none_or(|(opened, _)| *opened != current) {
            open = None;
            match open::open_reader(path, settings) {
                Ok(connection) => open = Some((current, connection)),
                Err(error) => {
                    job(Err(fault(&name, error)));
                    continue;
                }
            }
        }
        if let Some((_, connection)) = &open {
            let _reading = gate.read().unwrap_or_else(PoisonError::into_inner);
            // A job that panics drops its caller's channel; the next job gets a new connection.
            if catch_unwind(AssertUnwindSafe(|| job(Ok(connection)))).is_err() {
                open = None;
            }
        }
    }
}
