//! What SQLite says, in words that a caller can act on.

use dwell_core::{Error, ErrorKind};
use rusqlite::{ErrorCode, ffi};

/// What SQLite returns.
pub(crate) type Sql<T> = rusqlite::Result<T>;

/// The code behind an error, if SQLite gave one.
pub(crate) fn code(error: &rusqlite::Error) -> Option<ErrorCode> {
    error.sqlite_error_code()
}

/// Whether there was no room left: on the disk, or under a quota or a limit, for which SQLite has no word of its own.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    const BEYOND_A_LIMIT: [i32; 2] = [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
    let extended = error.sqlite_error().map(|error| error.extended_code);
    code(error) == Some(ErrorCode::DiskFull) || extended.is_some_and(|code| BEYOND_A_LIMIT.contains(&code))
}

/// There is no room left that this may have.
pub(crate) fn full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)
}

/// The error of a call for which there is no room in a file that has reached its size.
pub(crate) fn at_its_size(file: &str, error: rusqlite::Error) -> Error {
    let text = format!(
        "`{file}` has reached its `max_size`: raise it, or let consumers catch up; nothing in it is lost, and it goes on as \
         soon as there is room in it"
    );
    Error::new(ErrorKind::StorageFull, text).with_source(error)
}

/// Whether another process was in the way.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(code(error), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether a value in a row is not what it has to be: SQLite itself has read it.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(
        error,
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
    )
}

/// The error of a call that SQLite did not carry out.
pub(crate) fn fault(file: &str, error: rusqlite::Error) -> Error {
    let (kind, text) = match code(&error) {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            format!(
                "another process has held the lock on `{file}` for longer than `busy_timeout`: try again when it is \
                 done, or raise that"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::StorageFull,
            format!(
                "there is no room left for `{file}`: free some on its disk, or raise `max_size`; nothing in it is lost, \
                 and it goes on as soon as there is room"
            ),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            format!(
                "`{file}` is damaged: restore a backup, or save what can be read with `sqlite3 {file} .recover`"
            ),
        ),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            format!("`{file}` is not a SQLite database: name another file, or restore it from a backup"),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            ErrorKind::Denied,
            format!(
                "`{file}` cannot be written: this process needs to write the file and its directory, and `{file}-wal` and \
                 `{file}-shm` where they are there"
            ),
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Denied,
            format!("`{file}` cannot be opened: this process needs to write the file and its directory"),
        ),
        Some(ErrorCode::TooBig) => {
            (ErrorKind::TooLarge, "SQLite takes nothing over a billion bytes: send less".to_owned())
        }
        Some(ErrorCode::SystemIoFailure) if is_full(&error) => (
            ErrorKind::StorageFull,
            format!(
                "nothing more can be written to `{file}` ({error}): its disk is full, its quota or its limit is reached, \
                 or the disk does not work, as the system's log says; nothing in it is lost, and it goes on as soon as \
                 it can be written"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!("the disk under `{file}` does not work ({error}): see the system's log"),
        ),
        Some(_) => (ErrorKind::Unavailable, format!("SQLite could not work on `{file}`: {error}")),
        None => (
            ErrorKind::Corrupt,
            format!("something in `{file}` is not as it should be ({error}): was it changed by hand?"),
        ),
    };
    Error::new(kind, text).with_source(error)
}
