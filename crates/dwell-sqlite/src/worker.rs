//! The thread that writes, at work.

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

/// Where nobody else sees to it, the file is tidied this often.
const TIDY: Duration = Duration::from_secs(60);

/// A log that is larger than this, and could not be emptied by the way, is emptied on purpose.
const LOG_LIMIT: u64 = 2 * open::LOG_LIMIT;

/// The log is written into the file when so much of it is not there yet, in bytes: what changes often is then written there
/// once, where it would be written with every group.
const LONG: i64 = 16 << 20;

/// A log of this length starts anew, whatever is still to be written for that: where much changes with every group, there
/// would never be little.
const LONGEST: i64 = 24 << 20;

/// So little is written into the file by the way, so that the log starts anew: one that grows makes the disk slower.
const LITTLE: i64 = 1 << 20;

/// On a full disk the log must not grow, and so starts anew when there is this much in it: what it has taken is enough.
const SHORT: i64 = 256 << 10;

/// If no more than this is left, the other thread will be back before there is much again, and leaves little.
const SOME: i64 = 4 << 20;

/// What the thread has.
pub(crate) struct Worker {
    name: Arc<str>,
    /// `None` if the file could not be opened again.
    connection: Option<Connection>,
    settings: Arc<SqliteSettings>,
    seams: Seams,
    signals: Arc<Signals>,
    gate: Gate,
    reserve: Reserve,
    answers: Answers,
    /// Started when there is something to do for it.
    checkpoints: Option<Checkpoints>,
    /// Where the log is.
    log: Option<OsString>,
    /// The size of a page, in bytes: a file keeps the one that it was made with.
    page: i64,
    /// How long the file is at least, in bytes, when last looked: the log may have been written into it since.
    length: u64,
    /// When the file was last tidied.
    tidied: Duration,
    own: Own,
    cache: Cache,
}

/// Ways to find room on a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    EmptyLog,
    Reserve,
    Frugal,
}

/// Why a transaction failed.
enum Failure {
    Sql(rusqlite::Error),
    /// The disk has no room for the log, or for what must be kept to empty it.
    Log(rusqlite::Error),
    /// A job panicked: a row may refer to something that does not exist.
    Panic,
    /// The file could not be opened again.
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

    /// Whether a damaged row may be the reason.
    fn is_damage(&self) -> bool {
        match self {
            Self::Sql(error) => is_damage(error),
            Self::Panic => true,
            Self::Log(_) | Self::Other(_) => false,
        }
    }

    /// Of a commit, which is when the log is written.
    fn of_commit(error: rusqlite::Error) -> Self {
        if is_full(&error) { Self::Log(error) } else { Self::Sql(error) }
    }
}

/// What sees to it that the reserve is enough to empty the log.
struct Cover<'a> {
    reserve: &'a mut Reserve,
    length: &'a mut u64,
    page: i64,
    settings: &'a SqliteSettings,
}

impl Cover<'_> {
    /// Whether it is, with what is about to be committed. As long as there is no doubt, the file is not looked at.
    fn is_enough(&mut self, connection: &Connection) -> Sql<bool> {
        let Some(path) = self.settings.path() else { return Ok(true) };
        let mut pages = connection.prepare_cached("PRAGMA page_count")?;
        let whole = (pages.query_row([], |row| row.get::<_, i64>(0))? * self.page).unsigned_abs();
        // One that becomes smaller may be cut at any time.
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

    /// Works until nobody can ask for more, and closes the file. Returns what keeps a virtual clock from going on before
    /// that was said.
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
            // All that is in the log goes into the file, so that one file is left, unless another process is at work.
            let _ = open::checkpoint(&connection, "TRUNCATE");
        }
        self.reserve.release();
        self.answers.finish();
        closing
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
        self.checkpoints = None;
        self.connection = None;
        self.cache = Cache::default();
        let connection = open::open_writer(&self.settings)?;
        // It may be another file by now.
        self.own.marks.start_over();
        (self.page, self.length) = (open::page_size(&connection), 0);
        self.connection = Some(connection);
        self.wait_for_nobody();
        self.signals.wake_everyone();
        Ok(())
    }

    /// What is in the log is written into the file by a thread of its own. What has come meanwhile is written here, if it
    /// is little or the log is long: then all of it is there, and the log starts anew. If it has grown all the same, it is
    /// emptied while none of our own threads is at it; if others read, users may send no more before it is too long. Nobody
    /// waits for one of our own that reads for long, before it is half as long as that.
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
            // It is tried again after the next order.
            Err(TryLockError::WouldBlock) if self.own.log_length <= most / 2 => return,
            Err(_) => self.gate.write().unwrap_or_else(PoisonError::into_inner),
        };
        let _ = open::checkpoint(connection, "TRUNCATE");
        drop(nobody_reads);
        self.own.log_length = length();
    }

    /// Does some of what must be done now and then.
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

    /// Runs these jobs, and those that are gathered meanwhile, in one transaction.
    fn run(&mut self, mut group: Vec<Box<dyn Job>>, mut orders: Option<&mut Orders>) {
        let clock = self.seams.clock.clone();
        let gather = orders.as_deref_mut().map(|orders| orders.gather(&*clock));
        match self.attempt(&mut group, gather, false) {
            Ok(()) => self.answers.give(group, || orders.as_deref_mut().is_some_and(Orders::is_asked)),
            // Nobody has a better chance alone.
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

    /// A job that failed by itself. On a full disk there may be room for it where the log was, in the reserve, or if it is
    /// frugal; in a file that has reached its size, if it is frugal. Nothing makes way for what is new.
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
                let text = "a fault in Dwell itself: please report it";
                Error::new(ErrorKind::Unavailable, text).with_retryable(false)
            }
            Failure::Other(error) => error,
        };
        // Whoever asked hears of it, and says so if need be.
        tracing::debug!(file = %self.name, %error, "SQLite could not do what was asked");
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

    /// Whether this job has met the largest size of the file, and not the end of the disk: nearly all of the file is taken.
    fn is_at_its_size(&self, failure: &Failure, job: &[Box<dyn Job>]) -> bool {
        let (Failure::Sql(error), Some(connection)) = (failure, &self.connection) else { return false };
        let bytes: usize = job.iter().map(|job| job.weight().bytes).sum();
        let room = || Room::of(connection, &self.settings).ok().flatten();
        code(error) == Some(ErrorCode::DiskFull) && room().is_some_and(|room| room.is_little_for(bytes))
    }

    /// Writes what is in the log into the file, so that the log starts anew and needs no more room.
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
            return Err(Failure::Other(Error::new(ErrorKind::Unavailable, "the file is not open")));
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
                    Ok(Ok(_)) => unreachable!("it has not failed"),
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
    async fn who_writes_does_not_wait_for_who_reads_and_the_log_is_emptied_afterwards() {
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
                    // Were the others to wait for this, neither would ever end.
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
        assert!(length() > LOG_LIMIT, "it is not emptied under who reads: {}", length());
        end.send(()).unwrap();
        assert_eq!(reading.await.unwrap(), (0, true), "it saw one moment, and nobody waited for it");
        // By the order after which nobody is at it, not even the thread that writes the log into the file.
        let clock = SystemClock::new();
        let start = clock.elapsed();
        while length() > 0 {
            assert!(clock.elapsed() - start < Duration::from_secs(120), "it is not emptied: {}", length());
            file.write(1, |_| Ok(())).await.unwrap();
        }
    }
}
