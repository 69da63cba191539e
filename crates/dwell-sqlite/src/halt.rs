//! Reason why an operation was not carried out: SQLite failed, or a rule forbids it.

use crate::fault::Sql;
use dwell_core::{Error, ErrorKind};

#[derive(Debug)]
pub(crate) enum Halt {
    /// The whole transaction has failed.
    Sql(rusqlite::Error),
    /// This one item is refused, and has changed nothing.
    Refused(Error),
}

impl From<rusqlite::Error> for Halt {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

pub(crate) fn refused(kind: ErrorKind, text: impl Into<Box<str>>) -> Halt {
    Halt::Refused(Error::new(kind, text))
}

/// Returns the result of one item; only a SQLite error ends the transaction.
pub(crate) fn item<T>(done: Result<T, Halt>) -> Sql<dwell_core::Result<T>> {
    match done {
        Ok(done) => Ok(Ok(done)),
        Err(Halt::Refused(error)) => Ok(Err(error)),
        Err(Halt::Sql(error)) => Err(error),
    }
}
