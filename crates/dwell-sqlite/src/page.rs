//! Pages of records, in the order in which they came to be.
//!
//! A page is put together from one or more scans, each of which goes through an index that has its records in order, or
//! through a small set of them. No scan looks at more than so many rows at a time, so that a search through millions of
//! messages does not keep the log from being emptied.

use crate::{
    fault::Sql,
    file::File,
    record::{Found, record},
    tx::code,
};
use dwell_core::{Cursor, Error, ErrorKind, MessageId, Page, Record, RecordQuery, Result, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, Params, ToSql, types::Value};
use std::sync::Arc;

/// How many rows are looked through at a time.
const WINDOW: i64 = 20_000;

/// So many are rather sorted than looked for among all.
const FEW: i64 = 20_000;

/// Where a record stands in the order of all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    created_at: i64,
    id: String,
    number: i64,
}

impl Rank {
    /// Before all.
    const FIRST: Self = Self { created_at: i64::MIN, id: String::new(), number: i64::MIN };

    fn of(found: &Found) -> Self {
        Self {
            created_at: found.record.created_at.0,
            id: found.record.message.id.to_string(),
            number: found.number,
        }
    }

    fn of_cursor(cursor: &Cursor) -> Result<Self> {
        let number = i64::from_str_radix(&cursor.place, 16).map_err(|_| {
            let text = "this cursor is not one that this ledger gave: start from the first page";
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

/// What a query asks of each row.
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

/// One way to some of the records.
#[derive(Clone, Debug)]
struct Scan {
    /// Through this index, of rows like this.
    from: &'static str,
    condition: String,
    /// The index has them in order. Else all of them are looked at, and they are few.
    is_ordered: bool,
}

impl Scan {
    fn new(from: &'static str, condition: impl Into<String>, is_ordered: bool) -> Self {
        Self { from, condition: condition.into(), is_ordered }
    }

    /// Those in this state alone.
    fn of_state(self, code: u8) -> Self {
        Self { condition: format!("{} AND state = {code}", self.condition), ..self }
    }
}

/// Which scans find all that a query may ask for.
fn scans(connection: &Connection, query: &RecordQuery) -> Sql<Vec<Scan>> {
    let wanted: Vec<_> = query.states.iter().map(|state| code(*state).to_string()).collect();
    let any_state = match wanted.is_empty() {
        true => "1".to_owned(),
        false => format!("state IN ({})", wanted.join(", ")),
    };
    if query.id.is_some() {
        return Ok(vec![Scan::new("message_id", any_state, false)]);
    }
    // Of one key there may be millions, too: then it is looked for like anything else.
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
        // What is ready or in hands belongs where it lies, unless it is dead: of those there may be millions.
        let here = format!("place IN (SELECT home FROM tally WHERE state = {code} AND messages > 0)");
        let places = match state {
            State::Scheduled => vec![Scan::new("message_due", "phase = 0", false)],
            State::Ready => vec![
                Scan::new("message_ready", format!("phase = 1 AND {here}"), false),
                Scan::new("message_aside", format!("phase = 2 AND {here}"), false),
            ],
            State::Processing => vec![Scan::new("message_leased", format!("phase = 3 AND {here}"), false)],
            State::Done => vec![Scan::new("message_over", "phase = 4", false)],
            _ => vec![Scan::new("message_state", "state > 2 AND state <> 8", true)],
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

/// Whether few rows are on this way, in whatever state. The index alone is looked at, and no further than that.
fn is_small(connection: &Connection, scan: &Scan) -> Sql<bool> {
    has_few(connection, scan, [])
}

fn has_few(connection: &Connection, scan: &Scan, of: impl Params) -> Sql<bool> {
    let sql = format!(
        "SELECT 1 FROM message INDEXED BY {} WHERE {} LIMIT 1 OFFSET {FEW}",
        scan.from, scan.condition
    );
    Ok(!connection.prepare_cached(&sql)?.exists(of)?)
}

/// One page.
pub(crate) async fn list(file: &File, query: RecordQuery) -> Result<Page<Record>> {
    let after = query.after.as_ref().map(Rank::of_cursor).transpose()?.unwrap_or(Rank::FIRST);
    let query = Arc::new(query);
    // One more than asked for tells whether this page is the last.
    let wanted = query.limit.saturating_add(1);
    let asked = query.clone();
    let scans = file.read(move |connection| scans(connection, &asked)).await?;
    let mut items: Vec<Found> = Vec::new();
    for scan in scans {
        let (mut after, mut found) = (after.clone(), Vec::new());
        loop {
            let (query, of, from, left) = (query.clone(), scan.clone(), after, wanted - found.len());
            let window = file.read(move |connection| look(connection, &query, &of, &from, left)).await?;
            found.extend(window.found);
            match window.end {
                Some(end) if found.len() < wanted => after = end,
                _ => break,
            }
        }
        items.extend(found);
    }
    items.sort_by_cached_key(Rank::of);
    // Two scans may have met one record, if it changed its state between them.
    items.dedup_by_key(|found| found.number);
    let is_last = items.len() <= query.limit;
    items.truncate(query.limit);
    let next = items.last().filter(|_| !is_last).map(|last| Rank::of(last).into_cursor());
    Ok(Page { items: items.into_iter().map(|found| found.record).collect(), next })
}

/// What was found in one window, and where it ended; `None` at the end of all.
struct Window {
    found: Vec<Found>,
    end: Option<Rank>,
}

fn look(
    connection: &Connection,
    query: &RecordQuery,
    scan: &Scan,
    after: &Rank,
    limit: usize,
) -> Sql<Window> {
    let end = if scan.is_ordered { window_end(connection, scan, after)? } else { None };
    let filter = Filter::of(query);
    let until = match end {
        Some(_) => " AND (created_at, id, number) <= (:end_at, :end_id, :end_number)",
        None => "",
    };
    let sql = format!(
        concat!(
            "SELECT ",
            record!(),
            " FROM message INDEXED BY {from} WHERE {condition}
             AND (created_at, id, number) > (:at, :id, :number){until}{filter}
             ORDER BY created_at, id, number LIMIT :limit"
        ),
        from = scan.from,
        condition = scan.condition,
        until = until,
        filter = filter.sql,
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut values: Vec<(&str, &dyn ToSql)> =
        vec![(":at", &after.created_at), (":id", &after.id), (":number", &after.number), (":limit", &limit)];
    if let Some(end) = &end {
        values.extend([
            (":end_at", &end.created_at as &dyn ToSql),
            (":end_id", &end.id),
            (":end_number", &end.number),
        ]);
    }
    values.extend(filter.values.iter().map(|(name, value)| (*name, value as &dyn ToSql)));
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map(&values[..], Found::read)?.collect::<Sql<Vec<_>>>()?;
    Ok(Window { found, end })
}

/// The last row of the window behind `after`, if there are more behind it.
fn window_end(connection: &Connection, scan: &Scan, after: &Rank) -> Sql<Option<Rank>> {
    let sql = format!(
        "SELECT created_at, id, number FROM message INDEXED BY {} WHERE {}
         AND (created_at, id, number) > (?1, ?2, ?3) ORDER BY created_at, id, number LIMIT 1 OFFSET ?4",
        scan.from, scan.condition
    );
    connection
        .prepare_cached(&sql)?
        .query_row((after.created_at, &after.id, after.number, WINDOW - 1), |row| {
            Ok(Rank { created_at: row.get(0)?, id: row.get(1)?, number: row.get(2)? })
        })
        .optional()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row in each place, and so many of one state in one phase that another state is few among them.
    #[test]
    fn whatever_else_lies_there_no_state_is_looked_for_among_more_than_few_rows_at_a_time() {
        // The phase that they share, the state that is asked for, and the one that there are many of.
        for (phase, few, many) in [
            (0, State::Scheduled, State::Retrying),
            (0, State::Scheduled, State::Scheduled),
            (1, State::Ready, State::Dead),
            (2, State::Ready, State::Dead),
            (3, State::Processing, State::Dead),
            (3, State::Processing, State::Processing),
            (4, State::Done, State::Cancelled),
        ] {
            let connection = Connection::open_in_memory().unwrap();
            crate::layout::create(&connection).unwrap();
            let insert = |place: i64, state: State, first: i64, count: i64| {
                let sql = "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1 + ?2)
                     INSERT INTO message SELECT i, 9, ?3, ?3, ?4, ?5, ?5, i, i, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL,
                         NULL, NULL, NULL, NULL, NULL, NULL, NULL, i, '', NULL, '', NULL, 0, 0, NULL, x'' FROM n";
                connection.execute(sql, (first, count, place, phase, code(state))).unwrap();
                connection
                    .execute("REPLACE INTO tally VALUES (?1, ?2, ?3, 0)", (place, code(state), count))
                    .unwrap();
            };
            insert(1, many, 1, FEW + 5);
            insert(2, few, FEW + 10, 3);
            let query = RecordQuery { states: vec![few], limit: 10, ..RecordQuery::default() };
            let scans = scans(&connection, &query).unwrap();
            let mut found = 0;
            for scan in &scans {
                let (all, of_it) = scan.condition.split_once(" AND state").unwrap_or(("1", ""));
                let count = |condition: &str| -> i64 {
                    let sql =
                        format!("SELECT count(*) FROM message INDEXED BY {} WHERE {condition}", scan.from);
                    connection.query_row(&sql, [], |row| row.get(0)).unwrap()
                };
                assert!(scan.is_ordered || count(all) <= FEW, "{few} among {many}: {scan:?} {of_it}");
                found += count(&scan.condition);
            }
            assert_eq!(found, if few == many { FEW + 8 } else { 3 }, "{few} among {many}: {scans:?}");
        }
    }

    #[test]
    fn a_key_that_few_have_is_found_by_it_and_one_that_many_have_in_order() {
        let connection = Connection::open_in_memory().unwrap();
        crate::layout::create(&connection).unwrap();
        let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + 5)
             INSERT INTO message SELECT i, 9, 9, 9, 1, 1, 1, i, i, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL,
                 NULL, NULL, NULL, NULL, NULL, i, '', CASE WHEN i <= 3 THEN x'01' ELSE x'02' END, '', NULL, 0, 0, NULL, x'' FROM n";
        connection.execute(insert, [FEW]).unwrap();
        let rest =
            "INSERT INTO place VALUES (9, 'orders', 'mail'); INSERT INTO tally VALUES (9, 1, 20005, 0)";
        connection.execute_batch(rest).unwrap();
        for (key, states, is_ordered) in [
            (1, vec![], false),
            (1, vec![State::Ready], false),
            (2, vec![], true),
            (2, vec![State::Ready], true),
            (3, vec![], false),
        ] {
            let query =
                RecordQuery { key: Some(vec![key].into()), states, limit: 2, ..RecordQuery::default() };
            let scans = scans(&connection, &query).unwrap();
            assert!(scans.iter().all(|scan| scan.is_ordered == is_ordered), "{key}: {scans:?}");
            let found = look(&connection, &query, &scans[0], &Rank::FIRST, 2).unwrap().found.len();
            assert_eq!(found, if key == 3 { 0 } else { 2 });
        }
    }
}
