//! Opening a file: what it must be, and how each connection to it is set up.

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

/// How many prepared statements a connection keeps: more than there are.
const STATEMENTS: usize = 200;

/// What a connection keeps of the file in memory at most, in KiB. More is slower for the one that writes, with a million
/// that wait: after nearly every commit SQLite looks at each page that it keeps, and what is not kept is in the memory of the
/// system.
const CACHE: i64 = 8 * 1024;

/// A log that has grown beyond this is cut back when all of it is in the file.
pub(crate) const LOG_LIMIT: u64 = 64 << 20;

/// The first connection: makes the file what it must be, and writes.
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
    // Before it is looked at: SQLite would make a log beside it that only this user may write, if anybody.
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

/// A further connection, that only reads.
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

/// SQLite would take `file:…` for a URI, and `:memory:` for something else.
pub(crate) fn as_file(path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) }
}

fn check_path(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.is_dir() {
        let text =
            format!("`{shown}` is a directory: name a file in it, such as `sqlite://{shown}/dwell.db`");
        return Err(Error::new(ErrorKind::Config, text));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory {
        Some(directory) if !directory.is_dir() => {
            let help = match path.starts_with("~") {
                true => "nobody replaces the `~` here, so write the whole path",
                false => "create it",
            };
            let text = format!("the directory `{}` of `{shown}` is not there: {help}", directory.display());
            Err(Error::new(ErrorKind::NotFound, text))
        }
        _ => Ok(()),
    }
}

fn set_up(connection: &Connection, settings: &SqliteSettings) -> Sql<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Or else statements are planned anew for each value that they are given.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", settings.synchronous.pragma())?;
    connection.pragma_update(None, "cache_size", -CACHE)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // A commit does not wait for that: a thread of its own does it.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_LIMIT as i64, |_| Ok(()))?;
    if let Some(size) = settings.max_size {
        let pages = i64::try_from(size).unwrap_or(i64::MAX) / page_size(connection);
        connection.pragma_update_and_check(None, "max_page_count", pages.min(0xffff_fffe), |_| Ok(()))?;
    }
    Ok(())
}

/// In bytes.
pub(crate) fn page_size(connection: &Connection) -> i64 {
    let size = connection.pragma_query_value(None, "page_size", |row| row.get(0));
    // It is known without a look at the file.
    size.unwrap_or(layout::PAGE)
}

/// How much is in the log, and how much of that is in the file as well, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) pages: i64,
    pub(crate) written: i64,
}

/// Writes what is in the log into the file, as far as this mode does.
pub(crate) fn checkpoint(connection: &Connection, mode: &str) -> Sql<Log> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?;
    statement.query_row([], |row| Ok(Log { pages: row.get(1)?, written: row.get(2)? }))
}

/// Begins to write, once no other process does.
pub(crate) fn begin(connection: &Connection, timeout: Duration) -> Sql<()> {
    patiently(timeout, || connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop))
}

/// Does this once no other process is in the way. Another one may take turns with us hundreds of times a second, so this
/// looks more often than SQLite itself would.
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
    reason = "the other process lives in real time, whatever our clock says"
)]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{directory::Directory, settings::Synchronous};

    #[test]
    fn a_file_is_synchronous_in_full_unless_it_was_told_otherwise() {
        let directory = Directory::new();
        let mut settings = SqliteSettings::file(directory.path().join("dwell.db"));
        let mode = |settings: &SqliteSettings| -> i64 {
            let writer = open_writer(settings).unwrap();
            writer.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap()
        };
        assert_eq!(mode(&settings), 2, "what is confirmed survives a power cut");
        settings.synchronous = Synchronous::Normal;
        assert_eq!(mode(&settings), 1);
    }

    /// Else it would not be compared with the same.
    #[test]
    fn what_the_benchmark_is_compared_with_has_the_cache_the_pages_and_the_log_that_we_have() {
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
    fn a_directory_that_is_not_there_is_said_with_what_to_do() {
        let said = |path: &str| check_path(Path::new(path)).unwrap_err().to_string();
        assert!(said("nowhere/dwell.db").contains("create it"));
        let home = said("~/dwell.db");
        assert!(home.contains("write the whole path") && !home.contains("create it"), "{home}");
    }

    #[test]
    fn a_statement_is_planned_once_whatever_values_it_is_given() {
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
