//! The one thread that writes: it takes all that is asked of it meanwhile into one transaction, so that a thousand
//! callers share one wait for the disk.
//!
//! Every call is a job that can be run again: if a transaction fails, its jobs are run again one by one, and only the one
//! at fault is refused. Nobody is answered before the commit. On a virtual clock, time stands still while a job is on its
//! way or at work.

use crate::{
    fault::{Sql, fault, is_busy, is_full},
    open,
    readers::Gate,
    settings::SqliteSettings,
    signals::Signals,
    tx::{Cache, Own, Tx},
};
use dwell_core::{Busy, Clock, Error, ErrorKind, Result, Seams};
use rusqlite::Connection;
use std::{
    ffi::OsString,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// About how many messages one transaction takes: enough that the wait for the disk counts for little, and few enough
/// that nobody waits for long.
const GROUP: usize = 1000;

/// Where nobody else sees to it, the file is tidied this often.
const TIDY: Duration = Duration::from_secs(60);

/// A log that is larger than this, and could not be emptied by the way, is emptied on purpose.
const LOG_LIMIT: u64 = 2 * open::LOG_LIMIT;

/// Something to be done within a transaction.
trait Job: Send {
    /// About how many messages it is about.
    fn weight(&self) -> usize;

    /// Whether nobody waits for the answer any more.
    fn is_abandoned(&self) -> bool;

    fn run(&mut self, tx: &mut Tx<'_>) -> Sql<()>;

    /// Answers: with what `run` found, or with an error.
    fn finish(self: Box<Self>, failed: Option<Error>);
}

struct Task<T, U, F, C> {
    weight: usize,
    work: F,
    /// Makes the answer of what the work found, once it is committed.
    committed: C,
    result: Option<T>,
    answer: oneshot::Sender<Result<U>>,
    busy: Busy,
}

impl<T, U, F, C> Job for Task<T, U, F, C>
where
    T: Send,
    U: Send,
    F: FnMut(&mut Tx<'_>) -> Sql<T> + Send,
    C: FnOnce(T) -> U + Send,
{
    fn weight(&self) -> usize {
        self.weight
    }

    fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Sql<()> {
        self.result = Some((self.work)(tx)?);
        Ok(())
    }

    fn finish(self: Box<Self>, failed: Option<Error>) {
        let Task { work, committed, result, answer, busy, .. } = *self;
        // What the work held is the caller's alone when the answer comes.
        drop(work);
        if let Some(answered) = failed.map(Err).or(result.map(|result| Ok(committed(result)))) {
            // Nobody may be there to hear it: what cannot be undone by forgetting it has a drop of its own.
            let _ = answer.send(answered);
        }
        drop(busy);
    }
}

enum Order {
    Work(Box<dyn Job>),
    /// See whether another process has written.
    Watch(Busy),
    /// Let go of the file, and take it up again.
    Reopen(oneshot::Sender<Result<()>>, Busy),
}

/// The way to the thread that writes.
pub(crate) struct Writer {
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    /// `None` once it was closed.
    queue: RwLock<Option<Sender<Order>>>,
    ended: RwLock<Option<oneshot::Receiver<()>>>,
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        settings: Arc<SqliteSettings>,
        seams: &Seams,
        signals: Arc<Signals>,
        gate: Gate,
    ) -> Result<Self> {
        let name: Arc<str> = settings.location.to_string().into();
        let clock = seams.clock.clone();
        let mut log = settings.path().map(|path| path.as_os_str().to_owned());
        log.iter_mut().for_each(|path| path.push("-wal"));
        let worker = Worker {
            name: name.clone(),
            connection: Some(connection),
            settings,
            seams: seams.clone(),
            signals,
            gate,
            log,
            tidied: seams.clock.elapsed(),
            own: Own::default(),
            cache: Cache::default(),
        };
        let (queue, orders) = mpsc::channel();
        let (ends, ended) = oneshot::channel();
        let started = thread::Builder::new().name("dwell-sqlite".to_owned()).spawn(move || {
            worker.work(&orders);
            // The file is closed by now.
            let _ = ends.send(());
        });
        started.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("no thread could be started to write `{name}`"))
                .with_source(error)
        })?;
        Ok(Self { name, clock, queue: RwLock::new(Some(queue)), ended: RwLock::new(Some(ended)) })
    }

    /// Has this done within a transaction, as part of a group, and waits for the commit. `work` may be run more than once;
    /// only the last run counts.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        weight: usize,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
    ) -> Result<T> {
        let answer = self.order(weight, work, |found| found)?;
        answer.await.unwrap_or_else(|_| Err(self.closed()))
    }

    /// The same, for who cannot wait, or must know when it is committed.
    pub(crate) fn order<T: Send + 'static, U: Send + 'static>(
        &self,
        weight: usize,
        work: impl FnMut(&mut Tx<'_>) -> Sql<T> + Send + 'static,
        committed: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<U>>> {
        let (answer, answered) = oneshot::channel();
        let task = Task { weight, work, committed, result: None, answer, busy: self.clock.busy() };
        self.put(Order::Work(Box::new(task)))?;
        Ok(answered)
    }

    /// Wakes all receivers if another process has written.
    pub(crate) fn watch(&self) {
        // If it was closed, they hear of that elsewhere.
        let _ = self.put(Order::Watch(self.clock.busy()));
    }

    pub(crate) async fn reopen(&self) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        self.put(Order::Reopen(answer, self.clock.busy()))?;
        answered.await.unwrap_or_else(|_| Err(self.closed()))
    }

    fn put(&self, order: Order) -> Result<()> {
        let queue = self.queue.read().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or_else(|| self.closed())?;
        queue.send(order).map_err(|_| self.closed())
    }

    /// Finishes what was asked for, and closes the file.
    pub(crate) async fn close(&self) {
        drop(self.queue.write().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.ended.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("`{}` was closed: connect again", self.name))
    }
}

/// What the thread has.
struct Worker {
    name: Arc<str>,
    /// `None` if the file could not be opened again.
    connection: Option<Connection>,
    settings: Arc<SqliteSettings>,
    seams: Seams,
    signals: Arc<Signals>,
    gate: Gate,
    /// Where the log is.
    log: Option<OsString>,
    /// When the file was last tidied.
    tidied: Duration,
    own: Own,
    cache: Cache,
}

/// Why a transaction failed.
enum Failure {
    Sql(rusqlite::Error),
    /// The file could not be opened again, or a job panicked.
    Other(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Worker {
    fn work(mut self, orders: &Receiver<Order>) {
        self.wait_for_nobody();
        while let Ok(first) = orders.recv() {
            let _busy = self.seams.clock.busy();
            let (mut group, mut weight) = (Vec::new(), 0);
            let mut next = Some(first);
            while let Some(order) = next.take() {
                match order {
                    Order::Work(job) => {
                        weight += job.weight();
                        group.push(job);
                    }
                    Order::Watch(busy) => {
                        self.watch();
                        drop(busy);
                    }
                    Order::Reopen(answer, busy) => {
                        self.run(std::mem::take(&mut group));
                        let _ = answer.send(self.reopen());
                        drop(busy);
                    }
                }
                if weight < GROUP {
                    next = orders.try_recv().ok();
                }
            }
            self.run(group);
            self.keep_log_short();
            self.tidy();
        }
        if let Some(connection) = self.connection.take() {
            // All that is in the log goes into the file, so that one file is left, unless another process is at work.
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    /// We wait for others in our own way.
    fn wait_for_nobody(&self) {
        if let Some(connection) = &self.connection {
            let _ = connection.busy_timeout(Duration::ZERO);
        }
    }

    fn watch(&self) {
        let version = self.connection.as_ref().map(crate::tx::version);
        if let Some(Ok(version)) = version
            && self.cache.is_outdated(version)
        {
            self.signals.wake_everyone();
        }
    }

    fn reopen(&mut self) -> Result<()> {
        if self.settings.path().is_none() {
            let text = "what is in memory would be lost: `:memory:` cannot be opened again";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.connection = None;
        self.cache = Cache::default();
        self.connection = Some(open::open_writer(&self.settings)?);
        self.wait_for_nobody();
        self.signals.wake_everyone();
        Ok(())
    }

    /// SQLite empties the log by the way, unless somebody always reads. If it has grown all the same, it is emptied while
    /// none of our own readers is at it; if others are, users may send no more before it is too long.
    fn keep_log_short(&mut self) {
        let length =
            || self.log.as_ref().and_then(|log| std::fs::metadata(log).ok()).map_or(0, |log| log.len());
        self.own.log_length = length();
        if self.own.log_length <= LOG_LIMIT.min(self.settings.max_log) {
            return;
        }
        if let Some(connection) = &self.connection {
            let _nobody_reads = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
        self.own.log_length = length();
    }

    /// Does some of what must be done now and then.
    fn tidy(&mut self) {
        let elapsed = self.seams.clock.elapsed();
        if elapsed.saturating_sub(self.tidied) < TIDY {
            return;
        }
        let is_more = Arc::new(AtomicBool::new(false));
        let seen = is_more.clone();
        let (answer, _) = oneshot::channel();
        let work = move |tx: &mut Tx<'_>| {
            seen.store(tx.tidy()?, Ordering::Relaxed);
            Ok(())
        };
        let task =
            Task { weight: 1, work, committed: |()| (), result: None, answer, busy: self.seams.clock.busy() };
        self.run(vec![Box::new(task)]);
        if !is_more.load(Ordering::Relaxed) {
            self.tidied = elapsed;
        }
    }

    fn run(&mut self, mut group: Vec<Box<dyn Job>>) {
        if group.is_empty() {
            return;
        }
        match self.attempt(&mut group, false) {
            Ok(()) => group.into_iter().for_each(|job| job.finish(None)),
            // Nobody has a better chance alone.
            Err(Failure::Sql(error)) if is_busy(&error) => self.refuse(group, &fault(&self.name, error)),
            Err(failure) if group.len() == 1 => self.run_again(group, failure),
            Err(_) => {
                for job in group {
                    let mut alone = vec![job];
                    match self.attempt(&mut alone, false) {
                        Ok(()) => alone.into_iter().for_each(|job| job.finish(None)),
                        Err(failure) => self.run_again(alone, failure),
                    }
                }
            }
        }
    }

    fn refuse(&self, group: Vec<Box<dyn Job>>, error: &Error) {
        group.into_iter().for_each(|job| job.finish(Some(error.again())));
    }

    /// A job that failed by itself. On a full disk there may be room for it where the log was, or if it is frugal.
    fn run_again(&mut self, mut job: Vec<Box<dyn Job>>, failure: Failure) {
        let mut failure = failure;
        for frugal in [false, true] {
            match failure {
                Failure::Sql(error) if is_full(&error) => {
                    self.empty_log();
                    match self.attempt(&mut job, frugal) {
                        Ok(()) => return job.into_iter().for_each(|job| job.finish(None)),
                        Err(again) => failure = again,
                    }
                }
                _ => break,
            }
        }
        let error = match failure {
            Failure::Sql(error) => fault(&self.name, error),
            Failure::Other(error) => error,
        };
        tracing::warn!(file = %self.name, %error, "SQLite could not do what was asked");
        job.into_iter().for_each(|job| job.finish(Some(error.again())));
    }

    /// Writes what is in the log into the file, so that the log starts anew and needs no more room.
    fn empty_log(&self) {
        if let Some(connection) = &self.connection {
            let _ = connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
        }
    }

    fn attempt(&mut self, group: &mut [Box<dyn Job>], frugal: bool) -> Result<(), Failure> {
        if self.connection.is_none() {
            self.reopen().map_err(Failure::Other)?;
        }
        let Some(connection) = &self.connection else {
            return Err(Failure::Other(Error::new(ErrorKind::Unavailable, "the file is not open")));
        };
        open::begin(connection, self.settings.busy_timeout)?;
        let offset = self.own.offset;
        let (cache, own) = (&mut self.cache, &mut self.own);
        let (settings, seams) = (&*self.settings, &self.seams);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut tx = Tx::begin(connection, (cache, own), settings, seams, frugal)?;
            for job in group.iter_mut() {
                tx.start(job.is_abandoned());
                job.run(&mut tx)?;
            }
            let after = tx.finish()?;
            connection.prepare_cached("COMMIT")?.execute([])?;
            Sql::Ok(after)
        }));
        match ran {
            Ok(Ok(after)) => {
                self.signals.run(after);
                Ok(())
            }
            failed => {
                self.cache = Cache::default();
                self.own.offset = offset;
                if !connection.is_autocommit() {
                    connection.execute_batch("ROLLBACK")?;
                }
                Err(match failed {
                    Ok(Err(error)) => Failure::Sql(error),
                    _ => Failure::Other(
                        Error::new(ErrorKind::Unavailable, "a fault in Dwell itself: please report it")
                            .with_retryable(false),
                    ),
                })
            }
        }
    }
}
