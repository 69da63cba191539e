//! Size of a file, and its main contents.

use crate::{fault::Sql, tx::code};
use dwell_core::{Measure, Measured, State};
use rusqlite::Connection;

/// Size of a file, and its main contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Size of the file, in bytes.
    pub file: u64,
    /// Free bytes in the file, which are used before it grows.
    pub free: u64,
    /// Number of dead letters. They are kept until they are replayed or discarded.
    pub dead: u64,
    /// Total length of their bodies, in bytes.
    pub dead_bytes: u64,
    /// Number of refused rows of other programs in `incoming`, counted up to 10 000. They stay,
    /// with the reason, until they are removed by another program.
    pub refused: u64,
}

impl Usage {
    /// Returns the values as metrics.
    pub(crate) fn measures(self) -> Vec<Measure> {
        let gauge = |name, help, value| Measure { name, help, value: Measured::Gauge(value) };
        vec![
            gauge("sqlite_file_bytes", "Size of the file, in bytes.", self.file),
            gauge("sqlite_free_bytes", "Free space in the file, in bytes.", self.free),
            gauge(
                "sqlite_dead_letters",
                "Dead letters in the file, which are kept until they are replayed or discarded.",
                self.dead,
            ),
            gauge(
                "sqlite_dead_letters_bytes",
                "Total length of the bodies of the dead letters, in bytes.",
                self.dead_bytes,
            ),
            gauge(
                "sqlite_incoming_refused",
                "Refused rows of other programs in `incoming`, counted up to 10 000.",
                self.refused,
            ),
        ]
    }
}

pub(crate) fn usage(connection: &Connection) -> Sql<Usage> {
    let pragma = |name: &str| -> Sql<u64> {
        let value: i64 = connection.pragma_query_value(None, name, |row| row.get(0))?;
        Ok(value.try_into().unwrap_or(0))
    };
    let page = pragma("page_size")?;
    let (dead, dead_bytes): (i64, i64) = connection
        .prepare_cached(
            "SELECT coalesce(sum(messages), 0), coalesce(sum(bytes), 0) FROM tally WHERE state = ?1",
        )?
        .query_row([code(State::Dead)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // By the index of rows without an error: the column `error` is stored behind the body.
    let refused: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM incoming WHERE NOT EXISTS (
                 SELECT 1 FROM incoming AS open INDEXED BY incoming_open
                 WHERE open.number = incoming.number AND open.error IS NULL
             ) LIMIT 10000)",
        )?
        .query_row([], |row| row.get(0))?;
    Ok(Usage {
        file: pragma("page_count")? * page,
        free: pragma("freelist_count")? * page,
        dead: dead.try_into().unwrap_or(0),
        dead_bytes: dead_bytes.try_into().unwrap_or(0),
        refused: refused.try_into().unwrap_or(0),
    })
}
