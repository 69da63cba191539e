//! How much room a file takes, and what takes it.

use crate::{fault::Sql, tx::code};
use dwell_core::{Measure, Measured, State};
use rusqlite::Connection;

/// How much room a file takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The file, in bytes.
    pub file: u64,
    /// How many of these are free, and used before the file grows.
    pub free: u64,
    /// How many dead letters there are. They are kept until somebody replays or discards them.
    pub dead: u64,
    /// How long their bodies are together, in bytes.
    pub dead_bytes: u64,
    /// How many rows of other programs in `incoming` were refused, and lie there with the reason until somebody removes
    /// them: counted up to 10 000.
    pub refused: u64,
}

impl Usage {
    /// The same, as metrics.
    pub(crate) fn measures(self) -> Vec<Measure> {
        let gauge = |name, help, value| Measure { name, help, value: Measured::Gauge(value) };
        vec![
            gauge("sqlite_file_bytes", "The size of the file.", self.file),
            gauge("sqlite_free_bytes", "How much of the file is free.", self.free),
            gauge(
                "sqlite_dead_letters",
                "Dead letters in the file, which are kept until somebody decides.",
                self.dead,
            ),
            gauge(
                "sqlite_dead_letters_bytes",
                "The bodies of the dead letters in the file.",
                self.dead_bytes,
            ),
            gauge(
                "sqlite_incoming_refused",
                "Rows of other programs in `incoming` that were refused, with the reason beside them, up to 10 000.",
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
    // By the index of those that were not refused: a row has its reason behind its body.
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
