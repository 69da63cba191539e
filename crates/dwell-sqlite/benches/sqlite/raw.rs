//! Bare SQLite with the same tables, indexes, pragmas and statements, on one connection in the
//! calling thread, and with the same checkpoint thread.

use crate::raw_log::RawLog;
use dwell_core::{Envelope, Timestamp};
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, config::DbConfig, params};
use std::path::Path;

/// Places of the topic and of its only subscription.
const TOPIC: i64 = 1;
const QUEUE: i64 = 2;
const READY: u8 = 1;
const PROCESSING: u8 = 2;
const DONE: u8 = 8;
const LEASE: i64 = 30_000;

pub(crate) struct Raw {
    connection: Connection,
    next: i64,
    log: RawLog,
}

/// Leased message.
pub(crate) struct Leased {
    number: i64,
    fence: i64,
}

/// Reads a row like a receiver, up to the last column.
fn read(row: &Row<'_>) -> rusqlite::Result<i64> {
    let number = row.get(0)?;
    for column in 1..16 {
        row.get_ref(column)?;
    }
    row.get::<_, Box<str>>(7)?;
    row.get::<_, Box<str>>(8)?;
    row.get::<_, Vec<u8>>(15)?;
    Ok(number)
}

impl Raw {
    pub(crate) fn open(path: &Path) -> Self {
        let connection = Connection::open(path).expect("the file can be created");
        connection.set_prepared_statement_cache_capacity(200);
        let planned_once = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
        planned_once.expect("SQLite supports this option");
        let layout = concat!(
            "PRAGMA page_size = 2048; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA cache_size = -8192; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0;
             PRAGMA journal_size_limit = 67108864;",
            include_str!("../../src/layout/1.sql"),
            include_str!("../../src/layout/2.sql"),
            include_str!("../../src/layout/3.sql"),
            include_str!("../../src/layout/4.sql")
        );
        connection.execute_batch(layout).expect("the layout is valid SQL");
        Self { connection, next: 3, log: RawLog::of(path) }
    }

    /// Inserts a group of messages that are ready at once.
    pub(crate) fn insert(&mut self, group: &[Envelope], now: Timestamp) {
        self.transaction(|tx, next| {
            let mut insert = tx.prepare_cached(
                "INSERT INTO message VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?1, ?7, ?8, ?9, ?10, ?11, ?11, NULL, NULL, 0,
                 NULL, NULL, NULL, NULL, NULL, ?12, ?13, NULL, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, NULL, NULL,
                 NULL)",
            )?;
            for Envelope { message, .. } in group {
                let (number, nothing) = (*next, None::<&str>);
                *next += 1;
                insert.execute(params![
                    number,
                    TOPIC,
                    QUEUE,
                    QUEUE,
                    1,
                    READY,
                    number,
                    nothing,
                    nothing,
                    now.0,
                    now.0,
                    nothing,
                    nothing,
                    nothing,
                    &*message.id.0,
                    &*message.kind,
                    nothing,
                    &*message.content_type,
                    message.sent_at.map(|at| at.0),
                    message.attempts.handled,
                    message.attempts.failed,
                    nothing,
                    &*message.body,
                ])?;
            }
            tally(tx, READY, group.len() as i64)
        });
    }

    /// Leases ready messages.
    pub(crate) fn lease(&mut self, most: usize, now: Timestamp) -> Vec<Leased> {
        self.transaction(|tx, next| {
            let is_any = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| tx.prepare_cached(sql)?.exists(parameters);
            is_any(
                "SELECT number FROM incoming INDEXED BY incoming_open WHERE error IS NULL ORDER BY number LIMIT 1000",
                &[],
            )?;
            let has_ready =
                "SELECT 1 FROM message INDEXED BY message_ready WHERE place = ?1 AND phase = 1 LIMIT 1 OFFSET ?2";
            is_any(has_ready, &[&QUEUE, &(most as i64 - 1)])?;
            is_any(
                "SELECT message FROM waiting WHERE in_topic = ?1 AND in_part = 0 AND due_at <= ?2
                 ORDER BY due_at, message LIMIT 1000",
                &[&TOPIC, &now.0],
            )?;
            is_any(
                "SELECT number FROM message INDEXED BY message_leased
                 WHERE place = ?1 AND phase = 3 AND lease_until <= ?2 ORDER BY lease_until LIMIT 1000",
                &[&QUEUE, &now.0],
            )?;
            let mut ready = tx.prepare_cached(
                "SELECT number, step, rank, home, deliveries, due, problem, id, type, key, content_type, sent_at, handled,
                     failed, headers,
                     coalesce(body, (SELECT body FROM payload WHERE payload.message = message.number))
                 FROM message INDEXED BY message_ready
                 WHERE place = ?1 AND phase = 1 AND rank > ?2 ORDER BY rank LIMIT ?3",
            )?;
            let ready = ready.query_map((QUEUE, i64::MIN, most as i64), read)?;
            let ready = ready.collect::<rusqlite::Result<Vec<_>>>()?;
            let mut lease = tx.prepare_cached(
                "UPDATE message SET phase = 3, state = ?2, step = ?3, updated_at = ?4, lease_until = ?5, holder = ?6,
                    worker = ?7, changed_by = ?7, deliveries = deliveries + 1
                 WHERE number = ?1",
            )?;
            let mut leased = Vec::with_capacity(ready.len());
            for number in ready {
                let fence = *next;
                *next += 1;
                lease.execute((number, PROCESSING, fence, now.0, now.0 + LEASE, 1, "bench#1"))?;
                leased.push(Leased { number, fence });
            }
            is_any(has_ready, &[&QUEUE, &0])?;
            tally(tx, READY, -(leased.len() as i64))?;
            tally(tx, PROCESSING, leased.len() as i64)?;
            Ok(leased)
        })
    }

    /// Acknowledges leased messages, and keeps their records.
    pub(crate) fn ack(&mut self, leased: &[Leased], now: Timestamp) {
        self.transaction(|tx, next| {
            let mut held = tx.prepare_cached(
                "SELECT number, topic, place, home, phase, state, step, due, deliveries, key, id, updated_at,
                     content IS NOT NULL, fired IS NOT NULL, body IS NULL
                 FROM message WHERE number = ?1",
            )?;
            let mut past = tx.prepare_cached(
                "INSERT INTO history SELECT number, step, updated_at, state, changed_by,
                    CASE error_step WHEN step THEN error END, handled, failed FROM message WHERE number = ?1",
            )?;
            let mut end = tx.prepare_cached(
                "UPDATE message SET phase = 4, state = ?2, step = ?3, rank = NULL, schedule = NULL, destination = NULL,
                    updated_at = ?4, lease_until = NULL, holder = NULL, changed_by = ?5, worker = coalesce(?6, worker),
                    error = coalesce(?7, error), error_step = CASE WHEN ?7 IS NULL THEN error_step ELSE ?3 END,
                    result = ?8, fired = ?9
                 WHERE number = ?1",
            )?;
            for Leased { number, fence } in leased {
                let step: i64 = held.query_row([number], |row| {
                    row.get::<_, Box<str>>(10)?;
                    row.get(6)
                })?;
                assert_eq!(step, *fence, "the lease is still held");
                past.execute([number])?;
                let step = *next;
                *next += 1;
                let nothing = None::<&str>;
                end.execute((number, DONE, step, now.0, "bench", "bench", nothing, nothing, nothing))?;
            }
            tally(tx, PROCESSING, -(leased.len() as i64))?;
            tally(tx, DONE, leased.len() as i64)
        });
    }

    fn transaction<T>(&mut self, work: impl FnOnce(&Transaction<'_>, &mut i64) -> rusqlite::Result<T>) -> T {
        let run = || {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get::<_, i64>(0))?;
            let done = work(&tx, &mut self.next)?;
            tx.prepare_cached("UPDATE counter SET next = ?1, generation = ?2")?.execute((self.next, 1))?;
            tx.commit()?;
            Ok::<_, rusqlite::Error>(done)
        };
        let done = run().expect("the file is writable");
        self.log.keep_short(&self.connection);
        done
    }
}

fn tally(tx: &Transaction<'_>, state: u8, messages: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO tally VALUES (?1, ?2, ?3, ?4) ON CONFLICT (home, state) DO UPDATE
         SET messages = messages + excluded.messages, bytes = bytes + excluded.bytes",
    )?
    .execute((QUEUE, state, messages, 0))?;
    Ok(())
}
