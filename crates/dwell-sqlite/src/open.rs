//! Opening a file: the checks on it, and the set-up of each connection.

use crate::{
    fault::{Sql, fault, is_busy},
    layout,
    settings::{Location, SqliteSettings},
};
use dwell_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Capacity of a connection's cache of prepared statements; greater than the number of statements.
const STATEMENTS: usize = 200;

/// Maximum size of a connection's page cache, in KiB. A larger cache slows the writer down with a
/// million pending messages: SQLite scans the cached pages after nearly every commit. Other pages
/// stay in the page cache of the operating system.
const CACHE: i64 = 8 * 1024;

/// A log longer than this is truncated once all of it has been copied to the file.
pub(crate) const LOG_LIMIT: u64 = 64 << 20;

/// Opens the first connection, which writes, and creates the tables in an empty file.
pub(crate) fn open_writer(settings: &SqliteSettings) -> Result<Connection> {
    let name = settings.location.to_string();
    let Location::File(path) = &settings.location else {
        let connection = Connection::open_in_memory().map_err(|error| fault(&name, error))?;
        let made = set_up(&connection, settings).and_then(|()| layout::create(&connection));
        return made.map(|()| connection).map_err(|error| fault(&name, error));
    };
    check_path(path)?;
    let opened = Connection::open_with_flags(as_file(path), flags());
    let connection = opened.map_err(|error| fault(&name, error))?;
    // This comes first: on a read-only file, SQLite would create a log that at most this user could
    // write.
    if connection.is_readonly("main").map_err(|error| fault(&name, error))? {
        let read_only = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
        return Err(fault(&name, rusqlite::Error::SqliteFailure(read_only, None)));
    }
    let wait = |timeout| connection.busy_timeout(timeout).map_err(|error| fault(&name, error));
    wait(Duration::ZERO)?;
    layout::check(&connection, path, settings.busy_timeout)?;
    wait(settings.busy_timeout)?;
    set_up(&connection, settings).map_err(|error| fault(&name, error))?;
    Ok(connection)
}

/// Opens a further connection, which only reads.
pub(crate) fn open_reader(path: &Path, settings: &SqliteSettings) -> Sql<Connection> {
    let connection = Connection::open_with_flags(as_file(path), flags() - OpenFlags::SQLITE_OPEN_CREATE)?;
    connection.busy_timeout(settings.busy_timeout)?;
    set_up(&connection, settings)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

fn flags() -> OpenFlags {
    // Each connection is used by one thread.
    OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// Makes a relative path explicit. SQLite would parse `file:…` as a URI, and `:memory:` as a
/// database in memory.
pub(crate) fn as_file(path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) }
}

fn check_path(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.is_dir() {
        let text = format!("`{shown}` is a directory: use a file in it, such as `sqlite://{shown}/dwell.db`");
        return Err(Error::new(ErrorKind::Config, text));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory {
        Some(directory) if !directory.is_dir() => {
            let help = match path.starts_with("~") {
                true => "`~` is not expanded here, so write the whole path",
                false => "create it",
            };
            let text = format!("the directory `{}` of `{shown}` does not exist: {help}", directory.display());
            Err(Error::new(ErrorKind::NotFound, text))
        }
        _ => Ok(()),
    }
}

fn set_up(connection: &Connection, settings: &SqliteSettings) -> Sql<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without this option, statements are prepared again for different bound values.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", settings.synchronous.pragma())?;
    connection.pragma_update(None, "cache_size", -CACHE)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // The checkpoint thread does this, so that commits do not wait for it.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_LIMIT as i64, |_| Ok(()))?;
    if let Some(size) = settings.max_size {
        let pages = i64::try_from(size).unwrap_or(i64::MAX) / page_size(connection);
        connection.pragma_update_and_check(None, "max_page_count", pages.min(0xffff_fffe), |_| Ok(()))?;
    }
    Ok(())
}

/// Returns the page size, in bytes.
pub(crate) fn page_size(connection: &Connection) -> i64 {
    let size = connection.pragma_query_value(None, "page_size", |row| row.get(0));
    // SQLite knows the size without reading the file.
    size.unwrap_or(layout::PAGE)
}

/// Length of the log, and the part of it that is in the file as well, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) pages: i64,
    pub(crate) written: i64,
}

/// Copies the log to the file, to the extent that `mode` allows.
pub(crate) fn checkpoint(connection: &Connection, mode: &str) -> Sql<Log> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    statement.query_row([], |row| Ok(Log { pages: row.get(1)?, written: row.get(2)? }))
}

/// Begins a write transaction, once no other process is writing.
pub(crate) fn begin(connection: &Connection, timeout: Duration) -> Sql<()> {
    patiently(timeout, || connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop))
}

/// Retries `work` while another process holds the lock. Another process may alternate with this one
/// hundreds of times a second, so this polls more often than the busy handler of SQLite.
pub(crate) fn patiently<T>(timeout: Duration, mut work: impl FnMut() -> Sql<T>) -> Sql<T> {
    const SHORTEST: Duration = Duration::from_micros(50);
    const LONGEST: Duration = Duration::from_millis(5);
    let (mut pause, mut waited) = (SHORTEST, Duration::ZERO);
    loop {
        match work() {
            Err(error) if is_busy(&error) && waited < timeout => {}
            done => return done,
        }
        rest(pause);
        waited += pause;
        pause = (pause * 2).min(LONGEST);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the other process runs in real time, even if this one has a virtual clock"
)]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{directory::Directory, settings::Synchronous};

    #[test]
    fn synchronous_is_full_by_default() {
        let directory = Directory::new();
        let mut settings = SqliteSettings::file(directory.path().join("dwell.db"));
        let mode = |settings: &SqliteSettings| -> i64 {
            let writer = open_writer(settings).unwrap();
            writer.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap()
        };
        assert_eq!(mode(&settings), 2, "confirmed messages survive a power failure");
        settings.synchronous = Synchronous::Normal;
        assert_eq!(mode(&settings), 1);
    }

    /// The benchmark compares Dwell with bare SQLite under the same settings.
    #[test]
    fn benchmark_baseline_has_the_same_cache_page_and_log_sizes() {
        let bare = include_str!("../benches/sqlite/raw.rs");
        for pragma in [
            format!("cache_size = -{CACHE};"),
            format!("page_size = {};", layout::PAGE),
            format!("journal_size_limit = {LOG_LIMIT};"),
        ] {
            assert!(bare.contains(&pragma), "{pragma}");
        }
    }

    #[test]
    fn missing_directory_error_tells_what_to_do() {
        let error = |path: &str| check_path(Path::new(path)).unwrap_err().to_string();
        assert!(error("nowhere/dwell.db").contains("create it"));
        let home = error("~/dwell.db");
        assert!(home.contains("write the whole path") && !home.contains("create it"), "{home}");
    }

    #[test]
    fn statement_is_prepared_once_for_all_bound_values() {
        let directory = Directory::new();
        let settings = SqliteSettings::file(directory.path().join("dwell.db"));
        let writer = open_writer(&settings).unwrap();
        let reader = open_reader(&directory.path().join("dwell.db"), &settings).unwrap();
        for connection in [writer, reader] {
            let mut statement = connection.prepare("SELECT 1 FROM message LIMIT ?1").unwrap();
            (0..3).for_each(|most| assert!(!statement.exists([most]).unwrap()));
            assert_eq!(statement.get_status(rusqlite::StatementStatus::RePrepare), 0);
        }
    }
}
