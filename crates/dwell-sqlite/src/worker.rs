//! The writer thread's loop.

use crate::{
    answers::Answers,
    checkpoints::Checkpoints,
    fault::{Sql, at_its_size, code, fault, full, is_busy, is_damage, is_full},
    job::{Job, Task},
    open::{self, Log},
    orders::{Gather, Order, Orders},
    readers::Gate,
    reserve::Reserve,
    room::Room,
    settings::SqliteSettings,
    signals::Signals,
    tx::{Cache, Own, Tx},
};
use dwell_core::{Busy, Error, ErrorKind, Result, Seams};
use rusqlite::{Connection, ErrorCode};
use std::{
    ffi::OsString,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Interval at which the file is tidied, if no background task does it.
const TIDY: Duration = Duration::from_secs(60);

/// A log that is larger than this, and could not be emptied in passing, is truncated explicitly.
const LOG_LIMIT: u64 = 2 * open::LOG_LIMIT;

/// A checkpoint starts once this many bytes of the log are not in the file. Pages that change often
/// are then written once, rather than with every group.
const LONG: i64 = 16 << 20;

/// At this length, in bytes, the log is restarted, whatever is left to be copied for that. Under
/// steady load the remainder would never become small.
const LONGEST: i64 = 24 << 20;

/// A remainder of at most this many bytes is copied inline, so that the log restarts: a growing log
/// slows the disk down.
const LITTLE: i64 = 1 << 20;

/// On a full disk the log must not grow, so it is restarted at this length, in bytes, within the
/// space that it already occupies.
const SHORT: i64 = 256 << 10;

/// With a remainder of at most this many bytes, the next checkpoint finishes before much more is
/// appended, and leaves little.
const SOME: i64 = 4 << 20;

/// State of the writer thread.
pub(crate) struct Worker {
    name: Arc<str>,
    /// `None` if the file could not be reopened.
    connection: Option<Connection>,
    settings: Arc<SqliteSettings>,
    seams: Seams,
    signals: Arc<Signals>,
    gate: Gate,
    reserve: Reserve,
    answers: Answers,
    /// Started when it is first needed.
    checkpoints: Option<Checkpoints>,
    /// Path of the log.
    log: Option<OsString>,
    /// Page size in bytes, which an existing file keeps.
    page: i64,
    /// Minimum length of the file, in bytes, at the last check: the log may have been copied to it
    /// since.
    length: u64,
    /// Time when the file was last tidied.
    tidied: Duration,
    own: Own,
    cache: Cache,
}

/// Way to find room on a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    EmptyLog,
    Reserve,
    Frugal,
}

/// Reason why a transaction failed.
enum Failure {
    Sql(rusqlite::Error),
    /// The disk has no room for the log, or for the reserve needed to empty it.
    Log(rusqlite::Error),
    /// A job panicked: a row may refer to something that does not exist.
    Panic,
    /// The file could not be reopened.
    Other(Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Failure {
    fn is_full(&self) -> bool {
        match self {
            Self::Sql(error) => is_full(error),
            Self::Log(_) => true,
            Self::Panic | Self::Other(_) => false,
        }
    }

    /// Returns whether a damaged row may be the cause.
    fn is_damage(&self) -> bool {
        match self {
            Self::Sql(error) => is_damage(error),
            Self::Panic => true,
            Self::Log(_) | Self::Other(_) => false,
        }
    }

    /// Classifies the error of a commit, which is when the log is written.
    fn of_commit(error: rusqlite::Error) -> Self {
        if is_full(&error) { Self::Log(error) } else { Self::Sql(error) }
    }
}

/// Check that the reserve is large enough to empty the log.
struct Cover<'a> {
    reserve: &'a mut Reserve,
    length: &'a mut u64,
    page: i64,
    settings: &'a SqliteSettings,
}

impl Cover<'_> {
    /// Returns whether the reserve is large enough, including the pages about to be committed. The
    /// length of the file is read only in case of doubt.
    fn is_enough(&mut self, connection: &Connection) -> Sql<bool> {
        let Some(path) = self.settings.path() else { return Ok(true) };
        let mut pages = connection.prepare_cached("PRAGMA page_count")?;
        let whole = (pages.query_row([], |row| row.get::<_, i64>(0))? * self.page).unsigned_abs();
        // A file that shrinks may be truncated at any time.
        *self.length = whole.min(*self.length);
        if self.reserve.is_plenty(whole - *self.length) {
            return Ok(true);
        }
        *self.length = std::fs::metadata(path).map_or(0, |file| file.len()).min(whole);
        Ok(self.reserve.cover(whole - *self.length))
    }
}

impl Worker {
    pub(crate) fn new(
        connection: Connection,
        settings: Arc<SqliteSettings>,
        seams: Seams,
        signals: Arc<Signals>,
        gate: Gate,
        answers: Answers,
    ) -> Self {
        let mut log = settings.path().map(|path| path.as_os_str().to_owned());
        log.iter_mut().for_each(|path| path.push("-wal"));
        Self {
            name: settings.location.to_string().into(),
            page: open::page_size(&connection),
            connection: Some(connection),
            tidied: seams.clock.elapsed(),
            seams,
            signals,
            gate,
            reserve: Reserve::beside(settings.path()),
            answers,
            checkpoints: None,
            log,
            length: 0,
            own: Own::default(),
            cache: Cache::default(),
            settings,
        }
    }

    /// Processes orders until all senders are gone, then closes the file. Returns a guard that
    /// stops a virtual clock from advancing before the close was reported.
    pub(crate) fn work(mut self, mut orders: Orders) -> Option<Busy> {
        let mut closing = None;
        self.wait_for_nobody();
        while let Some(order) = orders.next() {
            let _busy = self.seams.clock.busy();
            match order {
                Order::Work(job) => self.run(vec![job], Some(&mut orders)),
                Order::Watch(busy) => {
                    self.watch();
                    drop(busy);
                }
                Order::Close(busy) => closing = Some(busy),
                Order::Reopen(answer, busy) => {
                    let _ = answer.send(self.reopen());
                    drop(busy);
                }
            }
            self.keep_log_short();
            self.tidy();
        }
        self.checkpoints = None;
        if let Some(connection) = self.connection.take() {
            // Copy the whole log to the file, so that one file is left, unless another process uses
            // it.
            let _ = open::checkpoint(&connection, "TRUNCATE");
        }
        self.reserve.release();
        self.answers.finish();
        closing
    }

    /// Disables SQLite's busy handler; `open::patiently` replaces it.
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
            let text = "`:memory:` cannot be reopened, because its messages would be lost: use a file";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.checkpoints = None;
        self.connection = None;
        self.cache = Cache::default();
        let connection = open::open_writer(&self.settings)?;
        // The file may have been replaced.
        self.own.marks.start_over();
        (self.page, self.length) = (open::page_size(&connection), 0);
        self.connection = Some(connection);
        self.wait_for_nobody();
        self.signals.wake_everyone();
        Ok(())
    }

    /// Limits the length of the log. The checkpoint thread copies the log to the file; what was
    /// appended meanwhile is copied here, if it is little or the log is long, so that the log can
    /// restart. If the log has grown nevertheless, it is truncated while none of our own readers is
    /// active. Until it exceeds half of `max_log`, this does not wait for our readers. Readers of
    /// other processes may prevent the truncation; users' sends are refused before the log becomes
    /// too long.
    fn keep_log_short(&mut self) {
        let (Some(log), Some(connection)) = (&self.log, &self.connection) else { return };
        if let Ok(Log { pages, written }) = open::checkpoint(connection, "NOOP")
            && pages * self.page >= if self.own.is_short { SHORT } else { LONG }
        {
            match (pages - written) * self.page {
                0 => {}
                _ if self.own.is_short => drop(open::checkpoint(connection, "PASSIVE")),
                left if left <= LITTLE || left < LONG && pages * self.page >= LONGEST => {
                    drop(open::checkpoint(connection, "PASSIVE"));
                }
                left if left > SOME && left < LONG => {}
                _ => {
                    let start = || Checkpoints::start(self.settings.clone(), self.gate.clone()).ok();
                    self.checkpoints = self.checkpoints.take().or_else(start);
                    self.checkpoints.iter().for_each(Checkpoints::ask);
                }
            }
        }
        let length = || std::fs::metadata(log).map_or(0, |log| log.len());
        self.own.log_length = length();
        let most = self.settings.max_log;
        if self.own.log_length <= LOG_LIMIT.min(most) {
            return;
        }
        let nobody_reads = match self.gate.try_write() {
            Ok(nobody_reads) => nobody_reads,
            // Retried after the next order.
            Err(TryLockError::WouldBlock) if self.own.log_length <= most / 2 => return,
            Err(_) => self.gate.write().unwrap_or_else(PoisonError::into_inner),
        };
        let _ = open::checkpoint(connection, "TRUNCATE");
        drop(nobody_reads);
        self.own.log_length = length();
    }

    /// Runs periodic maintenance.
    fn tidy(&mut self) {
        let elapsed = self.seams.clock.elapsed();
        self.reserve.take_again(elapsed);
        self.own.is_short = !self.reserve.is_taken();
        if elapsed.saturating_sub(self.tidied) < TIDY {
            return;
        }
        let is_more = Arc::new(AtomicBool::new(false));
        let seen = is_more.clone();
        let work = move |tx: &mut Tx<'_>| {
            seen.store(tx.tidy()?, Ordering::Relaxed);
            Ok(())
        };
        let (task, _) = Task::new(1.into(), work, |()| (), self.seams.clock.busy());
        self.run(vec![Box::new(task)], None);
        if !is_more.load(Ordering::Relaxed) {
            self.tidied = elapsed;
        }
    }

    /// Runs these jobs, and jobs gathered meanwhile, in one transaction.
    fn run(&mut self, mut group: Vec<Box<dyn Job>>, mut orders: Option<&mut Orders>) {
        let clock = self.seams.clock.clone();
        let gather = orders.as_deref_mut().map(|orders| orders.gather(&*clock));
        match self.attempt(&mut group, gather, false) {
            Ok(()) => self.answers.give(group, || orders.as_deref_mut().is_some_and(Orders::is_asked)),
            // A single job would fail for the same reason.
            Err(Failure::Sql(error)) if is_busy(&error) => self.refuse(group, &fault(&self.name, error)),
            Err(failure) if group.len() == 1 => self.run_again(group, failure),
            Err(_) => {
                for job in group {
                    let mut alone = vec![job];
                    match self.attempt(&mut alone, None, false) {
                        Ok(()) => self.answers.give(alone, || false),
                        Err(failure) => self.run_again(alone, failure),
                    }
                }
            }
        }
    }

    fn refuse(&self, group: Vec<Box<dyn Job>>, error: &Error) {
        group.into_iter().for_each(|job| job.finish(Some(error.again())));
    }

    /// Retries a job that failed on its own. On a full disk there may be room for it in the former
    /// log, in the reserve, or in frugal mode; in a file that has reached its maximum size, in
    /// frugal mode. New messages never use frugal mode.
    fn run_again(&mut self, mut job: Vec<Box<dyn Job>>, mut failure: Failure) {
        if failure.is_damage() && self.repair() {
            match self.attempt(&mut job, None, false) {
                Ok(()) => return self.answers.give(job, || false),
                Err(again) => failure = again,
            }
        }
        let is_at_its_size = self.is_at_its_size(&failure, &job);
        let ways =
            if is_at_its_size { &[Way::Frugal][..] } else { &[Way::EmptyLog, Way::Reserve, Way::Frugal] };
        let is_new = job.iter().any(|job| job.weight().is_new);
        for way in ways.iter().copied().filter(|way| !(is_new && *way == Way::Frugal)) {
            if !failure.is_full() {
                break;
            }
            if way == Way::Reserve && !self.reserve.release() {
                continue;
            }
            self.own.is_short = !self.reserve.is_taken();
            if !is_at_its_size {
                self.empty_log();
            }
            match self.attempt(&mut job, None, way == Way::Frugal) {
                Ok(()) => return self.answers.give(job, || false),
                Err(again) => failure = again,
            }
        }
        let error = match failure {
            Failure::Sql(error) if is_at_its_size && is_full(&error) => at_its_size(&self.name, error),
            Failure::Sql(error) | Failure::Log(error) => fault(&self.name, error),
            Failure::Panic => {
                let text = "internal error in Dwell: please report it";
                Error::new(ErrorKind::Unavailable, text).with_retryable(false)
            }
            Failure::Other(error) => error,
        };
        // The caller receives the error and may log it.
        tracing::debug!(file = %self.name, %error, "job failed");
        job.into_iter().for_each(|job| job.finish(Some(error.again())));
    }

    /// Makes damaged rows readable. Returns whether there were any.
    fn repair(&mut self) -> bool {
        let repaired = Arc::new(AtomicBool::new(false));
        let seen = repaired.clone();
        let work = move |tx: &mut Tx<'_>| {
            seen.store(tx.repair()? > 0, Ordering::Relaxed);
            Ok(())
        };
        let (task, _) = Task::new(1.into(), work, |()| (), self.seams.clock.busy());
        let done = self.attempt(&mut vec![Box::new(task)], None, false);
        done.is_ok() && repaired.load(Ordering::Relaxed)
    }

    /// Returns whether this job has met the size limit of the file rather than a full disk: nearly
    /// all of the file is in use.
    fn is_at_its_size(&self, failure: &Failure, job: &[Box<dyn Job>]) -> bool {
        let (Failure::Sql(error), Some(connection)) = (failure, &self.connection) else { return false };
        let bytes: usize = job.iter().map(|job| job.weight().bytes).sum();
        let room = || Room::of(connection, &self.settings).ok().flatten();
        code(error) == Some(ErrorCode::DiskFull) && room().is_some_and(|room| room.is_little_for(bytes))
    }

    /// Copies the log to the file, so that the log restarts and needs no more room.
    fn empty_log(&self) {
        if let Some(connection) = &self.connection {
            let _nobody_reads = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            let _ = open::checkpoint(connection, "RESTART");
        }
    }

    fn attempt(
        &mut self,
        group: &mut Vec<Box<dyn Job>>,
        mut gather: Option<Gather<'_>>,
        frugal: bool,
    ) -> Result<(), Failure> {
        if self.connection.is_none() {
            self.reopen().map_err(Failure::Other)?;
        }
        let Some(connection) = &self.connection else {
            return Err(Failure::Other(Error::new(
                ErrorKind::Unavailable,
                "the file is not open: try again",
            )));
        };
        open::begin(connection, self.settings.busy_timeout)?;
        let before = self.own.marks;
        let (cache, own) = (&mut self.cache, &mut self.own);
        let (settings, seams) = (&*self.settings, &self.seams);
        let mut cover =
            Cover { reserve: &mut self.reserve, length: &mut self.length, page: self.page, settings };
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut tx = Tx::begin(connection, (cache, own), settings, seams, frugal)?;
            if frugal {
                tx.make_room()?;
            }
            let mut at = 0;
            while let Some(job) = group.get_mut(at) {
                tx.start(job.is_abandoned())?;
                job.run(&mut tx)?;
                at += 1;
                if let Some(gather) = &mut gather {
                    gather.add(job.weight());
                    group.extend(gather.more());
                }
            }
            let after = tx.finish()?;
            if !cover.is_enough(connection)? && group.iter().any(|job| job.weight().is_new) {
                return Err(Failure::Log(full()));
            }
            let commit = || connection.prepare_cached("COMMIT")?.execute([]).map_err(Failure::of_commit);
            match gather {
                Some(gather) => gather.commit(commit)?,
                None => commit()?,
            };
            Ok(after)
        }));
        match ran {
            Ok(Ok(mut after)) => {
                self.own.consumers.extend(after.opened.drain(..));
                self.signals.run(after);
                Ok(())
            }
            failed => {
                self.cache = Cache::default();
                self.own.marks = before;
                if !connection.is_autocommit() {
                    connection.execute_batch("ROLLBACK")?;
                }
                Err(match failed {
                    Ok(Err(failure)) => failure,
                    Err(_) => Failure::Panic,
                    Ok(Ok(_)) => unreachable!("a successful run is handled above"),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{directory::Directory, file::File};
    use dwell_core::{Clock, SystemClock};
    use std::sync::mpsc;

    const LARGE: u32 = 32 << 20;

    #[tokio::test]
    async fn writer_does_not_wait_for_readers_and_the_log_is_emptied_afterwards() {
        let directory = Directory::new();
        let path = directory.path().join("dwell.db");
        let log = format!("{}-wal", path.display());
        let length = || std::fs::metadata(&log).unwrap().len();
        let settings = SqliteSettings { synchronous: crate::Synchronous::Off, ..SqliteSettings::file(&path) };
        let file = Arc::new(File::open(settings, Seams::system("test")).unwrap());
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let reading = tokio::spawn({
            let file = file.clone();
            async move {
                let look = move |connection: &Connection| {
                    let seen: i64 =
                        connection.query_row("SELECT count(*) FROM payload", [], |row| row.get(0))?;
                    let _ = begin.send(());
                    // If the writer waited for this reader, neither would ever finish.
                    Ok((seen, ended.recv_timeout(Duration::from_secs(120)).is_ok()))
                };
                file.read(look).await.unwrap()
            }
        });
        tokio::task::spawn_blocking(move || begun.recv().unwrap()).await.unwrap();
        let write = async || {
            let insert = |tx: &mut Tx<'_>| {
                let sql = "INSERT INTO payload SELECT count(*) + 1, zeroblob(?1) FROM payload";
                tx.connection().execute(sql, [LARGE])
            };
            file.write(1, insert).await.unwrap();
        };
        for _ in 0..=LOG_LIMIT / u64::from(LARGE) {
            write().await;
        }
        assert!(length() > LOG_LIMIT, "the log was emptied while a reader was active: {}", length());
        end.send(()).unwrap();
        assert_eq!(
            reading.await.unwrap(),
            (0, true),
            "the reader sees one snapshot and does not block the writer"
        );
        // After some order, no thread uses the log any more, not even the checkpoint thread.
        let clock = SystemClock::new();
        let start = clock.elapsed();
        while length() > 0 {
            assert!(
                clock.elapsed() - start < Duration::from_secs(120),
                "the log is not emptied: {}",
                length()
            );
            file.write(1, |_| Ok(())).await.unwrap();
        }
    }
}
