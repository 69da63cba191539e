//! Conversion of SQLite errors to errors that a caller can act on.

use dwell_core::{Error, ErrorKind};
use rusqlite::{ErrorCode, ffi};

/// Result of a SQLite call.
pub(crate) type Sql<T> = rusqlite::Result<T>;

/// Returns the code of an error, if SQLite gave one.
pub(crate) fn code(error: &rusqlite::Error) -> Option<ErrorCode> {
    error.sqlite_error_code()
}

/// Returns whether there was no room left, on the disk or under a quota or limit. SQLite has no
/// separate code for the latter.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    const BEYOND_A_LIMIT: [i32; 2] = [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
    let extended = error.sqlite_error().map(|error| error.extended_code);
    code(error) == Some(ErrorCode::DiskFull) || extended.is_some_and(|code| BEYOND_A_LIMIT.contains(&code))
}

/// Returns the error for a job that may not use the remaining room.
pub(crate) fn full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)
}

/// Converts the error of a call for which there is no room in a file of maximum size.
pub(crate) fn at_its_size(file: &str, error: rusqlite::Error) -> Error {
    let text = format!(
        "`{file}` has reached its `max_size`: raise it, or let consumers catch up; stored messages are safe, and sending \
         resumes once there is room"
    );
    Error::new(ErrorKind::StorageFull, text).with_source(error)
}

/// Returns whether another process held the lock.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(code(error), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Returns whether a row contains an invalid value. SQLite itself could read the row.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(
        error,
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
    )
}

/// Converts the error of a call that SQLite did not carry out.
pub(crate) fn fault(file: &str, error: rusqlite::Error) -> Error {
    let (kind, text) = match code(&error) {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            format!(
                "another process has held the lock on `{file}` for longer than `busy_timeout`: try again once it has \
                 finished, or raise `busy_timeout`"
            ),
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::StorageFull,
            format!(
                "there is no room left for `{file}`: free disk space, or raise `max_size`; stored messages are safe, \
                 and work resumes once there is room"
            ),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Corrupt,
            format!(
                "`{file}` is damaged: restore a backup, or extract the readable data with `sqlite3 {file} .recover`"
            ),
        ),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            format!("`{file}` is not a SQLite database: use another file, or restore this one from a backup"),
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            ErrorKind::Denied,
            format!(
                "`{file}` cannot be written: grant this process write access to the file, its directory and, if they \
                 exist, `{file}-wal` and `{file}-shm`"
            ),
        ),
        Some(ErrorCode::CannotOpen) => (
            ErrorKind::Denied,
            format!(
                "`{file}` cannot be opened: grant this process write access to the file and its directory"
            ),
        ),
        Some(ErrorCode::TooBig) => (
            ErrorKind::TooLarge,
            "the value exceeds SQLite's limit of a billion bytes: send a smaller message".to_owned(),
        ),
        Some(ErrorCode::SystemIoFailure) if is_full(&error) => (
            ErrorKind::StorageFull,
            format!(
                "writing to `{file}` failed ({error}): its disk is full, a quota or limit is reached, or the disk is \
                 faulty (see the system log); stored messages are safe, and work resumes once writing is \
                 possible"
            ),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            format!("input or output on `{file}` failed ({error}): check its disk and the system log"),
        ),
        Some(_) => (ErrorKind::Unavailable, format!("SQLite failed on `{file}`: {error}")),
        None => (
            ErrorKind::Corrupt,
            format!("`{file}` contains an unexpected value ({error}): check whether it was changed by hand"),
        ),
    };
    Error::new(kind, text).with_source(error)
}
