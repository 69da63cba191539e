//! Repair of rows of `message` that cannot be read, because another program or a disk has changed
//! them: a value of another type, a number out of range, text that is not UTF-8.
//!
//! Rows are read strictly everywhere. If that fails, all rows are checked here, once. A damaged
//! value is replaced by a readable one, and the row gets a `problem`. Its message is delivered with
//! the problem and moved to the invalid channel. Other messages are not affected.

use crate::{
    fault::Sql,
    row::Phase,
    tx::{Tx, code},
};
use dwell_core::{Headers, State};
use rusqlite::{
    Row, ToSql,
    types::{Value, ValueRef},
};
use std::collections::BTreeSet;

/// Header that keeps unreadable headers.
const UNREADABLE: &str = "x-dwell-unreadable-headers";

/// Maximum number of characters shown of a damaged value.
const SHOWN: usize = 60;

/// Valid values of a column.
#[derive(Clone, Copy)]
enum Rule {
    /// An integer from zero up to this.
    Number(i64),
    Integer,
    /// The number of an existing topic or subscription.
    Place,
    OptionalInteger,
    /// 0, 1, 2 or NULL.
    OptionalOnce,
    Text,
    OptionalText,
    /// Sixteen bytes or NULL.
    OptionalHash,
    /// Headers as JSON or NULL.
    OptionalHeaders,
}

const COUNT: Rule = Rule::Number(u32::MAX as i64);
const STATES: i64 = State::ALL.len() as i64 - 1;

/// Columns that are read, with their rules. The other columns can hold any value.
const COLUMNS: [(&str, Rule); 33] = [
    ("topic", Rule::Place),
    ("place", Rule::Place),
    ("home", Rule::Place),
    ("phase", Rule::Number(Phase::Over as i64)),
    ("state", Rule::Number(STATES)),
    ("born", Rule::Number(STATES)),
    ("step", Rule::Integer),
    ("rank", Rule::OptionalInteger),
    ("schedule", Rule::OptionalText),
    ("destination", Rule::OptionalText),
    ("due", Rule::Integer),
    ("created_at", Rule::Integer),
    ("updated_at", Rule::Integer),
    ("lease_until", Rule::OptionalInteger),
    ("holder", Rule::OptionalInteger),
    ("deliveries", COUNT),
    ("changed_by", Rule::OptionalText),
    ("worker", Rule::OptionalText),
    ("error", Rule::OptionalText),
    ("error_step", Rule::OptionalInteger),
    ("once", Rule::OptionalOnce),
    ("content", Rule::OptionalHash),
    ("problem", Rule::OptionalText),
    ("id", Rule::Text),
    ("type", Rule::Text),
    ("content_type", Rule::Text),
    ("sent_at", Rule::OptionalInteger),
    ("handled", COUNT),
    ("failed", COUNT),
    ("headers", Rule::OptionalHeaders),
    ("part", Rule::OptionalInteger),
    ("was_part", Rule::OptionalInteger),
    ("was_due", Rule::OptionalInteger),
];

impl Rule {
    fn holds(self, value: ValueRef<'_>, places: &BTreeSet<i64>) -> bool {
        match (self, value) {
            (Self::Place, ValueRef::Integer(place)) => places.contains(&place),
            (Self::Number(most), ValueRef::Integer(number)) => (0..=most).contains(&number),
            (Self::OptionalOnce, ValueRef::Integer(number)) => (0..=2).contains(&number),
            (Self::Integer | Self::OptionalInteger, ValueRef::Integer(_)) => true,
            (Self::Text | Self::OptionalText, ValueRef::Text(text)) => std::str::from_utf8(text).is_ok(),
            (Self::OptionalHash, ValueRef::Blob(bytes)) => bytes.len() == 16,
            (Self::OptionalHeaders, ValueRef::Text(json)) => {
                std::str::from_utf8(json).is_ok_and(|json| Headers::from_json(json).is_ok())
            }
            (
                Self::OptionalInteger
                | Self::OptionalOnce
                | Self::OptionalText
                | Self::OptionalHash
                | Self::OptionalHeaders,
                ValueRef::Null,
            ) => true,
            (
                Self::Number(_)
                | Self::Place
                | Self::Integer
                | Self::OptionalInteger
                | Self::OptionalOnce
                | Self::Text
                | Self::OptionalText
                | Self::OptionalHash
                | Self::OptionalHeaders,
                _,
            ) => false,
        }
    }
}

/// Row with at least one damaged value.
struct Damaged {
    number: i64,
    /// Invalid values, as text.
    values: Vec<(&'static str, String)>,
    /// Set if its body is neither in the row nor in `payload`.
    has_no_body: bool,
}

impl Damaged {
    fn of(row: &Row<'_>, places: &BTreeSet<i64>) -> Sql<Option<Self>> {
        let mut values = vec![];
        for (at, (column, rule)) in COLUMNS.into_iter().enumerate() {
            let value = row.get_ref(at + 2)?;
            if !rule.holds(value, places) {
                values.push((column, shown(value)));
            }
        }
        let has_no_body = row.get(1)?;
        let is_damaged = !values.is_empty() || has_no_body;
        let number = row.get(0)?;
        Ok(is_damaged.then_some(Self { number, values, has_no_body }))
    }

    fn has(&self, column: &str) -> bool {
        self.values.iter().any(|(name, _)| *name == column)
    }

    fn problem(&self) -> String {
        let mut words: Vec<_> =
            self.values.iter().map(|(column, value)| format!("`{column}` is {value}")).collect();
        if self.has_no_body {
            words.push("its body is missing".to_owned());
        }
        format!("row {} of `message` was damaged: {}", self.number, words.join(", "))
    }
}

fn shown(value: ValueRef<'_>) -> String {
    let cut = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(SHOWN).collect::<String>();
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) => format!("the text {:?}", cut(bytes)),
        ValueRef::Blob(bytes) => format!("the bytes {:?}", cut(bytes)),
    }
}

impl Tx<'_> {
    /// Makes all damaged rows readable, and gives each a problem. Returns their number.
    pub(crate) fn repair(&mut self) -> Sql<usize> {
        let damaged = self.damaged()?;
        if damaged.is_empty() {
            return Ok(0);
        }
        // Entries of `waiting` are looked up by message here and nowhere else. Without this index,
        // each damaged row would scan the table.
        self.connection().execute_batch("CREATE INDEX waiting_repair ON waiting (message)")?;
        for row in &damaged {
            let problem = row.problem();
            self.repair_row(row, &problem)?;
            tracing::error!(
                file = %self.file_name(),
                row = row.number,
                problem,
                "damaged message found; moving it to the invalid channel"
            );
        }
        if damaged.iter().any(|row| row.has("home") || row.has("state") || row.has("phase")) {
            self.count_again()?;
        }
        self.connection().execute_batch("DROP INDEX waiting_repair")?;
        Ok(damaged.len())
    }

    fn damaged(&self) -> Sql<Vec<Damaged>> {
        let columns = COLUMNS.map(|(column, _)| column).join(", ");
        let sql = format!(
            "SELECT number, body IS NULL AND NOT EXISTS (SELECT 1 FROM payload WHERE payload.message = number), {columns}
             FROM message ORDER BY number"
        );
        let mut statement = self.connection().prepare("SELECT id FROM place")?;
        let places = statement.query_map([], |row| row.get(0))?.collect::<Sql<BTreeSet<i64>>>()?;
        let mut statement = self.connection().prepare(&sql)?;
        let mut rows = statement.query([])?;
        let mut damaged = vec![];
        while let Some(row) = rows.next()? {
            damaged.extend(Damaged::of(row, &places)?);
        }
        Ok(damaged)
    }

    fn repair_row(&mut self, row: &Damaged, problem: &str) -> Sql<()> {
        for (column, value) in &row.values {
            let replacement = self.replacement(row, column, value)?;
            self.set(row.number, column, &replacement)?;
        }
        if row.has_no_body {
            self.set(row.number, "body", &Vec::<u8>::new())?;
        }
        self.set(row.number, "problem", &problem)?;
        // Restore the entry that a pending message is found by.
        let number = row.number;
        self.connection().execute("DELETE FROM waiting WHERE message = ?1", [number])?;
        self.connection().execute(
            "UPDATE message SET part = CASE phase WHEN 0 THEN coalesce(part, 0) END, was_part = NULL, was_due = NULL
             WHERE number = ?1",
            [number],
        )?;
        self.connection().execute(
            "INSERT INTO waiting SELECT topic, part, due, number FROM message WHERE number = ?1 AND phase = 0",
            [number],
        )?;
        self.cache.parts.clear();
        self.cache.told.clear();
        Ok(())
    }

    /// Returns the replacement for a damaged value: derived from the rest of the row, or NULL.
    fn replacement(&self, row: &Damaged, column: &str, value: &str) -> Sql<Value> {
        let by = |sql: &str| -> Sql<Value> {
            self.connection().query_row(sql, (row.number, self.now.0), |row| row.get(0))
        };
        Ok(match column {
            "id" => format!("damaged-{}", row.number).into(),
            "type" => String::new().into(),
            "content_type" => "application/octet-stream".to_owned().into(),
            "headers" => Headers::from_iter([(UNREADABLE, value.to_owned())]).to_json().into(),
            "topic" => by(
                "SELECT coalesce(
                     (SELECT topic FROM subscription WHERE id = place), (SELECT id FROM topic WHERE id = place),
                     (SELECT in_topic FROM waiting WHERE message = number), (SELECT min(id) FROM topic)
                 ) FROM message WHERE number = ?1 AND ?2",
            )?,
            "place" => by(
                "SELECT coalesce(
                     (SELECT id FROM subscription WHERE id = home), (SELECT id FROM topic WHERE id = home AND phase = 0),
                     (SELECT min(id) FROM subscription s WHERE s.topic = message.topic), topic
                 ) FROM message WHERE number = ?1 AND ?2",
            )?,
            "home" => by("SELECT place FROM message WHERE number = ?1 AND ?2")?,
            // Derived from its entry of `waiting`, or from its lease.
            "phase" => by(
                "SELECT CASE
                     WHEN part IS NOT NULL AND EXISTS (SELECT 1 FROM waiting WHERE message = number) THEN 0
                     WHEN lease_until IS NOT NULL AND holder IS NOT NULL THEN 3 ELSE 1
                 END FROM message WHERE number = ?1 AND ?2",
            )?,
            "state" => self.state_of(row.number)?,
            "step" | "rank" => row.number.into(),
            "due" => by("SELECT coalesce((SELECT due_at FROM waiting WHERE message = number), ?2) FROM message
                 WHERE number = ?1")?,
            "part" => by("SELECT (SELECT in_part FROM waiting WHERE message = number) FROM message
                 WHERE number = ?1 AND ?2")?,
            "created_at" | "updated_at" | "lease_until" => self.now.0.into(),
            "born" | "deliveries" | "handled" | "failed" | "holder" => 0.into(),
            _ => Value::Null,
        })
    }

    /// Returns the state that matches the phase of a message.
    fn state_of(&self, number: i64) -> Sql<Value> {
        let (phase, topic): (Value, Value) = self.connection().query_row(
            "SELECT phase, topic FROM message WHERE number = ?1",
            [number],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let is_dead = match topic {
            Value::Integer(topic) => self.places().topics.get(&topic).is_some_and(|topic| topic.is_dead),
            _ => false,
        };
        let state = match phase {
            Value::Integer(4) => State::Discarded,
            _ if is_dead => State::Dead,
            Value::Integer(0) => State::Scheduled,
            Value::Integer(3) => State::Processing,
            _ => State::Ready,
        };
        Ok(i64::from(code(state)).into())
    }

    fn set(&self, number: i64, column: &str, value: &dyn ToSql) -> Sql<()> {
        let sql = format!("UPDATE message SET {column} = ?2 WHERE number = ?1");
        self.connection().execute(&sql, rusqlite::params![number, value]).map(drop)
    }

    /// Recomputes the counts of all messages.
    fn count_again(&self) -> Sql<()> {
        self.connection().execute_batch(
            "UPDATE message SET rank = number WHERE phase = 1 AND rank IS NULL;
             DELETE FROM tally;
             INSERT INTO tally SELECT home, state, count(*), sum(CASE state WHEN 5 THEN
                 coalesce(octet_length(body), (SELECT octet_length(body) FROM payload WHERE payload.message = number), 0)
             ELSE 0 END) FROM message GROUP BY home, state",
        )
    }
}
