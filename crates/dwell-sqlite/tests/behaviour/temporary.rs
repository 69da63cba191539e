//! A file that goes with its test.

use super::directory::Directory;
use dwell_core::{Result, Seams, VirtualClock};
use dwell_sqlite::{Location, Sqlite, SqliteSettings};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

/// How many messages there are that are not over, as the file itself says.
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

    /// What must hold between two transactions, whatever has happened.
    pub(crate) fn check(&self) {
        let none = |what: &str, sql: &str| {
            let found: i64 = self
                .connection()
                .query_row(&format!("SELECT count(*) FROM ({sql})"), [], |row| row.get(0))
                .unwrap();
            assert_eq!(found, 0, "{what}");
        };
        none(
            "the tally is what there is",
            "SELECT home, state, count(*) FROM message GROUP BY home, state
             EXCEPT SELECT home, state, messages FROM tally",
        );
        none(
            "the tally counts nothing else",
            "SELECT home, state, messages FROM tally WHERE messages <> 0
             EXCEPT SELECT home, state, count(*) FROM message GROUP BY home, state",
        );
        let lengths = "SELECT home, state, sum(CASE state WHEN 5 THEN
                 coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number))
             ELSE 0 END) FROM message GROUP BY home, state";
        none(
            "the tally knows how long dead letters are",
            &format!("{lengths} EXCEPT SELECT home, state, bytes FROM tally"),
        );
        none(
            "the tally knows of no bytes that are not there",
            &format!("SELECT home, state, bytes FROM tally WHERE bytes <> 0 EXCEPT {lengths}"),
        );
        none(
            "what lies aside has a key that is taken, or one that is ready and leads to it",
            "SELECT number FROM message AS aside WHERE phase = 2 AND NOT EXISTS (
                 SELECT 1 FROM message AS other WHERE other.place = aside.place AND other.key = aside.key
                 AND other.phase IN (1, 3)
             )",
        );
        none(
            "nothing has a name to wait under that does not wait, or waits under its id",
            "SELECT number FROM message WHERE schedule IS NOT NULL AND (phase <> 0 OR schedule = id)",
        );
        none(
            "what is in somebody's hands has an end, and nothing else has",
            "SELECT number FROM message WHERE (phase = 3) <> (lease_until IS NOT NULL AND holder IS NOT NULL)",
        );
        none(
            "what waits under one name in one topic is one",
            "SELECT 1 FROM message WHERE phase = 0 GROUP BY coalesce(schedule, id), topic HAVING count(*) > 1",
        );
        none(
            "nothing that waits has fired under its id",
            "SELECT number FROM message WHERE fired = 1 AND phase = 0",
        );
        none(
            "what is ready or in hands belongs where it lies, unless it is dead",
            "SELECT number FROM message WHERE state IN (1, 2) AND home <> place",
        );
        none("no past without a message", "SELECT message FROM history EXCEPT SELECT number FROM message");
        none("no body without a message", "SELECT message FROM payload EXCEPT SELECT number FROM message");
        none(
            "no body twice",
            "SELECT number FROM message JOIN payload ON message = number WHERE message.body IS NOT NULL",
        );
    }

    /// A client that knows nothing of Dwell.
    pub(crate) fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}
