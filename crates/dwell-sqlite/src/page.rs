//! Pages of records, in the order of their creation.
//!
//! A page is merged from one or more scans. Each scan uses an index that has its records in order,
//! or a small set of records. All scans read the same part of the order in one snapshot, and then
//! the next part. A record keeps its position in the order, so a record that changes its state
//! meanwhile is found by one of the scans when its part is read. Each part is limited in rows and
//! bytes, so that a search through millions of messages, or through large ones, does not stop the
//! log from being emptied.

use crate::{
    fault::Sql,
    file::File,
    record::{Found, record},
    tx::code,
    waiting::waiting,
};
use dwell_core::{Cursor, Error, ErrorKind, MessageId, Page, Record, RecordQuery, Result, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, Params, Row, ToSql, types::Value};
use std::sync::Arc;

/// Number of rows read in one part.
const WINDOW: i64 = 20_000;

/// Up to this number, records are sorted rather than searched among all records.
const FEW: i64 = 20_000;

/// Number of bytes of bodies that each scan reads in one part, not counting the last body.
const BYTES: i64 = 64 << 20;

/// Position of a record in the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created_at: i64,
    id: String,
    number: i64,
}

impl Rank {
    /// Position before all records.
    const FIRST: Self = Self { created_at: i64::MIN, id: String::new(), number: i64::MIN };

    /// Reads the columns `created_at`, `id` and `number`.
    fn read(row: &Row<'_>) -> Sql<Self> {
        Ok(Self { created_at: row.get(0)?, id: row.get(1)?, number: row.get(2)? })
    }

    fn of(found: &Found) -> Self {
        Self {
            created_at: found.record.created_at.0,
            id: found.record.message.id.to_string(),
            number: found.number,
        }
    }

    fn of_cursor(cursor: &Cursor) -> Result<Self> {
        let number = i64::from_str_radix(&cursor.place, 16).map_err(|_| {
            let text = "this cursor was not returned by this ledger: start from the first page";
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(Self { created_at: cursor.created_at.0, id: cursor.id.to_string(), number })
    }

    fn into_cursor(self) -> Cursor {
        Cursor {
            created_at: Timestamp(self.created_at),
            id: MessageId::from(self.id),
            place: format!("{:016x}", self.number).into(),
        }
    }
}

/// Conditions of a query on each row.
#[derive(Default)]
struct Filter {
    sql: String,
    values: Vec<(&'static str, Value)>,
}

impl Filter {
    fn of(query: &RecordQuery) -> Self {
        let mut filter = Self::default();
        let text = |text: &str| Value::Text(text.to_owned());
        if let Some(id) = &query.id {
            filter.add("id = :message", ":message", text(&id.0));
        }
        if let Some(key) = &query.key {
            filter.add("key = :key", ":key", Value::Blob(key.to_vec()));
        }
        if let Some(topic) = &query.topic {
            filter.add("home IN (SELECT id FROM place WHERE topic = :topic)", ":topic", text(topic));
        }
        if let Some(name) = &query.subscription {
            let condition = "home IN (SELECT id FROM place WHERE subscription = :subscription)";
            filter.add(condition, ":subscription", text(name));
        }
        if let Some(kind) = &query.kind {
            filter.add("type = :type", ":type", text(kind));
        }
        if let Some(error) = query.error.as_ref().filter(|error| !error.is_empty()) {
            filter.add("instr(error, :error)", ":error", text(error));
        } else if query.error.is_some() {
            filter.sql += " AND error IS NOT NULL";
        }
        if let Some(from) = query.due_after {
            filter.add("due >= :due_after", ":due_after", Value::Integer(from.0));
        }
        if let Some(to) = query.due_before {
            filter.add("due < :due_before", ":due_before", Value::Integer(to.0));
        }
        if let Some(found) = query.text.as_ref().filter(|text| !text.is_empty()) {
            let condition = "(instr(CAST(id AS BLOB), :text) OR instr(CAST(type AS BLOB), :text)
                OR instr(coalesce(key, x''), :text)
                OR instr(coalesce(body, (SELECT body FROM payload WHERE payload.message = message.number)), :text))";
            filter.add(condition, ":text", Value::Blob(found.as_bytes().to_vec()));
        }
        filter
    }

    fn add(&mut self, condition: &str, name: &'static str, value: Value) {
        self.sql += " AND ";
        self.sql += condition;
        self.values.push((name, value));
    }
}

/// Access path to some of the records.
#[derive(Clone, Copy, Debug)]
enum Way {
    Index(&'static str),
    /// The table of pending messages.
    Waiting,
}

impl Way {
    /// Returns the source of a `SELECT` statement.
    fn from(self) -> String {
        match self {
            Self::Index(name) => format!("message INDEXED BY {name}"),
            Self::Waiting => waiting!().to_owned(),
        }
    }
}

/// One scan over some of the records.
#[derive(Clone, Debug)]
struct Scan {
    way: Way,
    /// Condition on the rows.
    condition: String,
    /// Set if the index has them in order. Otherwise all of them are read, and they are few.
    is_ordered: bool,
}

impl Scan {
    fn new(index: &'static str, condition: impl Into<String>, is_ordered: bool) -> Self {
        Self { way: Way::Index(index), condition: condition.into(), is_ordered }
    }

    fn of_waiting() -> Self {
        Self { way: Way::Waiting, condition: "phase = 0".to_owned(), is_ordered: false }
    }

    /// Restricts the scan to this state.
    fn of_state(self, code: u8) -> Self {
        Self { condition: format!("{} AND state = {code}", self.condition), ..self }
    }
}

/// Returns scans that together find all records of a query.
fn scans(connection: &Connection, query: &RecordQuery) -> Sql<Vec<Scan>> {
    let wanted: Vec<_> = query.states.iter().map(|state| code(*state).to_string()).collect();
    let any_state = match wanted.is_empty() {
        true => "1".to_owned(),
        false => format!("state IN ({})", wanted.join(", ")),
    };
    if query.id.is_some() {
        return Ok(vec![Scan::new("message_id", any_state, false)]);
    }
    // A single key may have millions of messages; then the key is an ordinary condition.
    if let Some(key) = &query.key
        && has_few(connection, &Scan::new("message_key", "key = ?1", false), [&**key])?
    {
        return Ok(vec![Scan::new("message_key", any_state, false)]);
    }
    if wanted.is_empty() {
        return Ok(vec![Scan::new("message_created", "1", true)]);
    }
    let (mut scans, mut rest) = (Vec::new(), Vec::new());
    for state in State::ALL.into_iter().filter(|state| query.states.contains(state)) {
        let (code, mut are_few) = (code(state), true);
        // Ready and leased messages belong to the place that stores them, except dead letters, of
        // which there may be millions.
        let here = format!("place IN (SELECT home FROM tally WHERE state = {code} AND messages > 0)");
        let places = match state {
            State::Scheduled => vec![Scan::of_waiting()],
            State::Ready => vec![
                Scan::new("message_ready", format!("phase = 1 AND {here}"), false),
                Scan::new("message_aside", format!("phase = 2 AND {here}"), false),
            ],
            State::Processing => vec![Scan::new("message_leased", format!("phase = 3 AND {here}"), false)],
            State::Done => vec![Scan::new("message_over", "phase = 4", false)],
            // Each state separately, since the other one may have millions.
            State::Cancelled | State::Discarded => {
                vec![Scan::new("message_dropped", format!("state BETWEEN 6 AND 7 AND state = {code}"), false)]
            }
            State::Deferred | State::Retrying | State::Dead => {
                vec![Scan::new("message_state", "state BETWEEN 3 AND 5", true)]
            }
        };
        for place in places.iter().filter(|place| !place.is_ordered) {
            are_few &= is_small(connection, place)?;
        }
        match are_few {
            true => scans.extend(places.into_iter().map(|place| place.of_state(code))),
            false => rest.push(code.to_string()),
        }
    }
    if !rest.is_empty() {
        scans.push(Scan::new("message_created", format!("state IN ({})", rest.join(", ")), true));
    }
    Ok(scans)
}

/// Returns whether a scan has few rows, whatever their state. This reads the index only, and only
/// up to the limit.
fn is_small(connection: &Connection, scan: &Scan) -> Sql<bool> {
    has_few(connection, scan, [])
}

fn has_few(connection: &Connection, scan: &Scan, of: impl Params) -> Sql<bool> {
    let all = match scan.way {
        Way::Index(name) => format!("message INDEXED BY {name} WHERE {}", scan.condition),
        Way::Waiting => "waiting".to_owned(),
    };
    let sql = format!("SELECT 1 FROM {all} LIMIT 1 OFFSET {FEW}");
    Ok(!connection.prepare_cached(&sql)?.exists(of)?)
}

/// Returns one page.
pub(crate) async fn list(file: &File, query: RecordQuery) -> Result<Page<Record>> {
    let mut after = query.after.as_ref().map(Rank::of_cursor).transpose()?.unwrap_or(Rank::FIRST);
    let query = Arc::new(query);
    // One more than requested tells whether this page is the last.
    let wanted = query.limit.saturating_add(1);
    let mut items: Vec<Found> = Vec::new();
    loop {
        let (asked, left) = (query.clone(), wanted - items.len());
        let seen = file.read(move |connection| look(connection, &asked, &after, left)).await?;
        items.extend(seen.found);
        match seen.end {
            Some(end) if items.len() < wanted => after = end,
            _ => break,
        }
    }
    let is_last = items.len() <= query.limit;
    items.truncate(query.limit);
    let next = items.last().filter(|_| !is_last).map(|last| Rank::of(last).into_cursor());
    Ok(Page { items: items.into_iter().map(|found| found.record).collect(), next })
}

/// Records found in one part of the order, and the end of that part; `None` at the end of the
/// order.
struct Seen {
    found: Vec<Found>,
    end: Option<Rank>,
}

/// Part of the order, after one position and up to another or the end.
struct Part<'a> {
    after: &'a Rank,
    end: Option<Rank>,
}

impl Part<'_> {
    /// Moves the end forward to this position, if that is earlier.
    fn end_at(&mut self, end: Option<Rank>) {
        self.end = match (self.end.take(), end) {
            (Some(before), Some(end)) => Some(before.min(end)),
            (before, end) => before.or(end),
        };
    }

    fn has(&self, found: &Found) -> bool {
        self.end.as_ref().is_none_or(|end| Rank::of(found) <= *end)
    }
}

/// Reads the next part of the order with every scan, in one snapshot.
fn look(connection: &Connection, query: &RecordQuery, after: &Rank, limit: usize) -> Sql<Seen> {
    let scans = scans(connection, query)?;
    let mut part = Part { after, end: None };
    for scan in scans.iter().filter(|scan| scan.is_ordered) {
        part.end_at(end_by_rows(connection, scan, after)?);
    }
    if query.text.as_ref().is_some_and(|text| !text.is_empty()) {
        let others = Filter::of(&RecordQuery { text: None, ..query.clone() });
        for scan in &scans {
            part.end_at(end_by_bytes(connection, &others, scan, &part)?);
        }
    }
    let (filter, mut found) = (Filter::of(query), Vec::new());
    for scan in &scans {
        let end = find(connection, &filter, scan, &part, limit, &mut found)?;
        part.end_at(end);
    }
    found.retain(|found| part.has(found));
    found.sort_by_cached_key(Rank::of);
    found.truncate(limit);
    Ok(Seen { found, end: part.end })
}

/// Adds the first records that a scan finds in this part. Returns where the scan stopped, if it
/// reached the byte limit.
fn find(
    connection: &Connection,
    filter: &Filter,
    scan: &Scan,
    part: &Part<'_>,
    limit: usize,
    into: &mut Vec<Found>,
) -> Sql<Option<Rank>> {
    let (mut bytes, mut end) = (0, None);
    each(connection, record!(), filter, scan, part, limit, |row| {
        let found = Found::read(row)?;
        bytes += found.record.message.body.len() as i64;
        end = (bytes > BYTES).then(|| Rank::of(&found));
        into.push(found);
        Ok(end.is_none())
    })?;
    Ok(end)
}

/// Returns where a text search must stop, because it reads the body of each row that passes the
/// other filters; `None` if it can read to the end of this part.
fn end_by_bytes(connection: &Connection, others: &Filter, scan: &Scan, part: &Part<'_>) -> Sql<Option<Rank>> {
    // Looked up row by row, so only for rows in this part. SQLite knows the length without reading
    // the body.
    let mut length = connection.prepare_cached(
        "SELECT coalesce(length(body), (SELECT length(body) FROM payload WHERE payload.message = message.number), 0)
         FROM message WHERE number = ?1",
    )?;
    let (mut bytes, mut end) = (0, None);
    each(connection, "created_at, id, number", others, scan, part, usize::MAX, |row| {
        bytes += length.query_row([row.get::<_, i64>(2)?], |row| row.get::<_, i64>(0))?;
        if bytes > BYTES {
            end = Some(Rank::read(row)?);
        }
        Ok(end.is_none())
    })?;
    Ok(end)
}

/// Calls `see` with these columns of each row of a scan in this part, in order, until it returns
/// `false`.
fn each(
    connection: &Connection,
    columns: &str,
    filter: &Filter,
    scan: &Scan,
    part: &Part<'_>,
    limit: usize,
    mut see: impl FnMut(&Row<'_>) -> Sql<bool>,
) -> Sql<()> {
    let until = match part.end {
        Some(_) => " AND (created_at, id, number) <= (:end_at, :end_id, :end_number)",
        None => "",
    };
    let sql = format!(
        "SELECT {columns} FROM {from} WHERE {condition}
         AND (created_at, id, number) > (:at, :id, :number){until}{filter}
         ORDER BY created_at, id, number LIMIT :limit",
        from = scan.way.from(),
        condition = scan.condition,
        filter = filter.sql,
    );
    let (after, limit) = (part.after, i64::try_from(limit).unwrap_or(i64::MAX));
    let mut values: Vec<(&str, &dyn ToSql)> =
        vec![(":at", &after.created_at), (":id", &after.id), (":number", &after.number), (":limit", &limit)];
    if let Some(end) = &part.end {
        values.extend([
            (":end_at", &end.created_at as &dyn ToSql),
            (":end_id", &end.id),
            (":end_number", &end.number),
        ]);
    }
    values.extend(filter.values.iter().map(|(name, value)| (*name, value as &dyn ToSql)));
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(&values[..])?;
    while let Some(row) = rows.next()? {
        if !see(row)? {
            break;
        }
    }
    Ok(())
}

/// Returns the position of the last row of a full window, if there are more rows behind it.
fn end_by_rows(connection: &Connection, scan: &Scan, after: &Rank) -> Sql<Option<Rank>> {
    let sql = format!(
        "SELECT created_at, id, number FROM {} WHERE {}
         AND (created_at, id, number) > (?1, ?2, ?3) ORDER BY created_at, id, number LIMIT 1 OFFSET ?4",
        scan.way.from(),
        scan.condition
    );
    connection
        .prepare_cached(&sql)?
        .query_row((after.created_at, &after.id, after.number, WINDOW - 1), Rank::read)
        .optional()
}

#[cfg(test)]
mod tests;
