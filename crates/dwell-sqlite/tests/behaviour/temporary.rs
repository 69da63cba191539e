//! Temporary file that is removed with its test.

use super::{directory::Directory, invariants};
use dwell_core::{Result, Seams, VirtualClock};
use dwell_sqlite::{Location, Sqlite, SqliteSettings};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// Number of unfinished messages, read from the file itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) waiting: usize,
    pub(crate) ready: usize,
    pub(crate) leased: usize,
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub(crate) struct Temporary {
    path: PathBuf,
    _directory: Directory,
}

impl Temporary {
    pub(crate) fn new() -> Self {
        let directory = Directory::new();
        Self { path: directory.path().join("dwell.db"), _directory: directory }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn open(&self, settings: SqliteSettings, clock: &VirtualClock) -> Result<Sqlite> {
        let settings = SqliteSettings { location: Location::File(self.path.clone()), ..settings };
        Sqlite::open(settings, Seams::virtual_time(clock.clone(), 1))
    }

    pub(crate) fn held(&self) -> Held {
        let count = |phases: &str| {
            let sql = format!("SELECT count(*) FROM message WHERE phase IN ({phases})");
            self.connection().query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap() as usize
        };
        Held { waiting: count("0"), ready: count("1, 2"), leased: count("3") }
    }

    /// Checks the invariants between two transactions.
    pub(crate) fn check(&self) {
        assert_eq!(invariants::broken(&self.connection()).unwrap(), [""; 0], "violated invariants");
    }

    /// Opens a plain SQLite connection.
    pub(crate) fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}
