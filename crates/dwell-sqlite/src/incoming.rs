//! Rows that other programs insert into the table `incoming`, which are accepted as if they were
//! sent.

use crate::{
    accept::By,
    fault::Sql,
    flow::CHUNK,
    halt::{Halt, item},
    orders::LARGEST,
    row::read_bytes,
    tx::Tx,
};
use bytes::Bytes;
use dwell_core::{
    Address, ContentType, Due, Envelope, Error, ErrorKind, Headers, MessageId, Text, Timestamp, wire,
};
use rusqlite::{
    Row, ToSql, params_from_iter,
    types::{FromSql, FromSqlResult, ToSqlOutput, Value, ValueRef},
};
use std::time::Duration;

/// Number of refused rows retried at a time.
const TRIED: usize = 100;

/// Row not processed yet.
struct Open {
    number: i64,
    length: Length,
    /// Its destination, if that can be read.
    to: Option<Address>,
}

/// Length of a row that was not read, in bytes.
#[derive(Clone, Copy)]
struct Length {
    body: usize,
    /// Including its headers and its key.
    whole: usize,
}

/// Columns of a [`Length`]. SQLite knows them without reading the values.
macro_rules! length {
    () => {
        "octet_length(body), octet_length(body) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0)"
    };
}

impl Length {
    fn read(row: &Row<'_>, at: usize) -> Sql<Self> {
        Ok(Self { body: row.get::<_, u32>(at)? as usize, whole: row.get::<_, u32>(at + 1)? as usize })
    }
}

struct Incoming {
    topic: Text,
    subscription: Option<Text>,
    id: Option<String>,
    kind: Option<Text>,
    key: Option<Bytes>,
    content_type: Option<String>,
    headers: Option<String>,
    body: Bytes,
    due: Option<i64>,
    delay: Option<i64>,
}

impl Incoming {
    fn of(row: &Row<'_>, key: Option<Bytes>, body: Option<Bytes>) -> Result<Self, Error> {
        const TIME: &str = "a whole number of milliseconds";
        Ok(Self {
            topic: column(row, "topic", "text")?,
            subscription: column(row, "subscription", "text")?,
            id: column(row, "id", "text")?,
            kind: column(row, "type", "text")?,
            key,
            content_type: column(row, "content_type", "text")?,
            headers: column(row, "headers", "text")?,
            body: body.unwrap_or_default(),
            due: column(row, "due", TIME)?,
            delay: column(row, "delay", TIME)?,
        })
    }
}

fn column<T: FromSql>(row: &Row<'_>, name: &str, what: &str) -> Result<T, Error> {
    row.get(name).map_err(|_| Error::new(ErrorKind::Invalid, format!("`{name}` is not {what}")))
}

/// Value as written by another program: a text value need not be UTF-8.
enum Raw {
    Text(Vec<u8>),
    Other(Value),
}

impl FromSql for Raw {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(match value {
            ValueRef::Text(bytes) => Self::Text(bytes.to_vec()),
            other => Self::Other(Value::column_result(other)?),
        })
    }
}

impl ToSql for Raw {
    fn to_sql(&self) -> Sql<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(bytes) => ValueRef::Text(bytes),
            Self::Other(value) => value.into(),
        }))
    }
}

impl Tx<'_> {
    /// Accepts rows inserted by other programs, a bounded number at a time. The next call continues
    /// behind them, and starts over at the end. Returns whether there are more.
    pub(crate) fn take_in(&mut self) -> Sql<bool> {
        if let Some(is_more) = self.taken_in {
            return Ok(is_more);
        }
        let is_more_to_try = self.try_again()?;
        let open = self.open_rows()?;
        let (mut is_more, mut bytes, mut last) = (open.len() == CHUNK, 0, i64::MIN);
        for Open { number, length, to } in open {
            if bytes > 0 && bytes + length.whole > LARGEST {
                is_more = true;
                break;
            }
            last = number;
            match item(self.take(number, length.body, to))? {
                // It stays until there is room, and does not block rows that have room.
                Err(error) if error.kind() == ErrorKind::StorageFull => continue,
                Ok(()) => _ = self.sql("DELETE FROM incoming WHERE number = ?1")?.execute([number])?,
                // It stays, with the reason, for people to see.
                Err(error) => {
                    tracing::warn!(file = %self.file_name(), number, %error, "row in `incoming` refused");
                    self.write_reason(number, Some(error.to_string()))?;
                }
            }
            bytes += length.whole;
        }
        self.own.marks.looked_at = if is_more { last } else { i64::MIN };
        let is_more = is_more_to_try || is_more;
        self.taken_in = Some(is_more);
        Ok(is_more)
    }

    /// Accepts one row. Its size is checked before it is read, because it may be of any length.
    fn take(&mut self, number: i64, body: usize, to: Option<Address>) -> Result<(), Halt> {
        self.check_size(format_args!("row {number} in `incoming`"), body)?;
        if let Some(to) = to {
            let target = self.target(&to)?;
            self.check_room(false, self.copies(target), body)?;
        }
        let (envelope, problem) = self.incoming(number)?.and_then(|incoming| self.read(incoming))?;
        self.accept(&envelope, By::OtherProgram(problem.as_deref()))?;
        Ok(())
    }

    /// Retries some of the refused rows, which may have a destination now, once there is room. Rows
    /// that are too large stay refused, since rewriting them would be useless. Returns whether
    /// there are more.
    pub(crate) fn try_again(&mut self) -> Sql<bool> {
        let Some(from) = self.own.marks.tried_again else { return Ok(false) };
        if !self.has_room()? {
            return Ok(false);
        }
        // By the index of rows without an error: the column `error` is stored behind the body.
        let rows: Vec<(i64, bool, Length)> = self
            .sql(concat!(
                "SELECT number, NOT EXISTS (
                     SELECT 1 FROM incoming AS open INDEXED BY incoming_open
                     WHERE open.number = incoming.number AND open.error IS NULL
                 ), ",
                length!(),
                " FROM incoming WHERE number > ?1 ORDER BY number LIMIT ?2",
            ))?
            .query_map((from, TRIED as i64), |row| Ok((row.get(0)?, row.get(1)?, Length::read(row, 2)?)))?
            .collect::<Sql<_>>()?;
        let (mut is_more, mut bytes, mut last) = (rows.len() == TRIED, 0, from);
        for (number, is_refused, length) in rows {
            if is_refused && length.body <= self.settings.max_body {
                if bytes > 0 && bytes + length.whole > LARGEST {
                    is_more = true;
                    break;
                }
                self.write_reason(number, None)?;
                self.own.marks.looked_at = self.own.marks.looked_at.min(from);
                bytes += length.whole;
            }
            last = number;
        }
        self.own.marks.tried_again = is_more.then_some(last);
        Ok(is_more)
    }

    /// Returns the next rows, or none as long as there is no room.
    fn open_rows(&self) -> Sql<Vec<Open>> {
        let mut statement = self.sql(concat!(
            "SELECT number, topic, subscription, ",
            length!(),
            " FROM incoming INDEXED BY incoming_open WHERE error IS NULL AND number > ?1 ORDER BY number LIMIT ?2",
        ))?;
        let from = self.own.marks.looked_at;
        let (mut rows, mut open) = (statement.query((from, CHUNK as i64))?, Vec::new());
        while let Some(row) = rows.next()? {
            if open.is_empty() && !self.has_room()? {
                break;
            }
            let (topic, name) = (row.get(1).ok(), row.get::<_, Option<Text>>(2).ok());
            let to = topic.zip(name).map(|(topic, name)| address(topic, name));
            open.push(Open { number: row.get(0)?, length: Length::read(row, 3)?, to });
        }
        Ok(open)
    }

    /// Sets or clears the reason why a row is refused. This does not use an update, for which
    /// SQLite would need room for a second copy of the body.
    fn write_reason(&self, number: i64, reason: Option<String>) -> Sql<()> {
        const COLUMNS: usize = 12;
        let mut row: Vec<Raw> = self
            .sql(
                "SELECT number, topic, subscription, id, type, key, content_type, headers, body, due, delay, error
                 FROM incoming WHERE number = ?1",
            )?
            .query_row([number], |row| (0..COLUMNS).map(|at| row.get(at)).collect())?;
        row[COLUMNS - 1] = Raw::Other(reason.into());
        self.sql("DELETE FROM incoming WHERE number = ?1")?.execute([number])?;
        self.sql("INSERT INTO incoming VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")?
            .execute(params_from_iter(row))?;
        Ok(())
    }

    /// Reads one row. An unreadable value is an error of this row alone.
    fn incoming(&self, number: i64) -> Sql<Result<Incoming, Error>> {
        self.sql(
            "SELECT number, topic, subscription, id, type, key, content_type, headers, body, due, delay FROM incoming
             WHERE number = ?1",
        )?
        .query_row([number], |row| {
            let (key, body) = (read_bytes(row, 5)?, read_bytes(row, 8)?);
            Ok(Incoming::of(row, key, body))
        })
    }

    fn read(&self, incoming: Incoming) -> Result<(Envelope, Option<Text>), Error> {
        let to = address(incoming.topic, incoming.subscription);
        let due = match (incoming.due, incoming.delay) {
            (None, None) => Due::NOW,
            (Some(due), None) => Due::At(Timestamp(due)),
            (None, Some(delay)) => match u64::try_from(delay) {
                Ok(delay) => Due::After(Duration::from_millis(delay)),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "`delay` is negative: use zero or a positive number",
                    ));
                }
            },
            _ => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "both `due` and `delay` are set: set one of them",
                ));
            }
        };
        let (headers, mut unreadable) = match incoming.headers.as_deref().map(Headers::from_json) {
            None => (Headers::default(), None),
            Some(Ok(headers)) => (headers, None),
            Some(Err(problem)) => {
                let kept = incoming.headers.unwrap_or_default();
                (Headers::from_iter([("x-dwell-unreadable-headers", kept)]), Some(Text::from(problem)))
            }
        };
        let has_content_type = incoming.content_type.is_some() || headers.get(wire::CONTENT_TYPE).is_some();
        let made_up = || self.seams.ids.next();
        let (mut message, problem) = wire::from_headers(headers, incoming.key, incoming.body, made_up);
        unreadable = unreadable.or(problem);
        if let Some(id) = incoming.id.filter(|id| !id.is_empty()) {
            message.id = MessageId::from(id);
        }
        if let Some(kind) = incoming.kind {
            message.kind = kind.into();
        }
        if let Some(content_type) = incoming.content_type {
            message.content_type = content_type.into();
        } else if !has_content_type && is_json(&message.body) {
            message.content_type = ContentType::JSON;
        }
        Ok((Envelope::new(to, message).due(due), unreadable))
    }
}

fn address(topic: Text, subscription: Option<Text>) -> Address {
    match subscription {
        Some(name) => Address::Subscription { topic, name },
        None => Address::Topic(topic),
    }
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteSettings, directory::Directory, file::File};
    use dwell_core::{OnMissing, Seams, Topic};

    #[tokio::test]
    async fn next_process_retries_refused_rows_left_by_the_creator_of_their_topic() {
        let directory = Directory::new();
        let settings = SqliteSettings::file(directory.path().join("dwell.db"));
        let open = || File::open(settings.clone(), Seams::system("test")).unwrap();
        let file = open();
        let insert = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
             INSERT INTO incoming (topic, error) SELECT 'orders', 'no topic' FROM n";
        file.write(1, move |tx| tx.sql(insert)?.execute([])).await.unwrap();
        let make =
            |tx: &mut Tx<'_>| item(tx.provision(&[Topic::named("orders").keep()], &[], OnMissing::Create));
        assert!(
            !file.write(1, make).await.unwrap().unwrap(),
            "the topic exists, and there are more rows to retry"
        );
        file.writer.close().await;

        let file = open();
        while file.write(1, |tx| tx.take_in()).await.unwrap() {}
        let left = |tx: &mut Tx<'_>| -> Sql<i64> {
            tx.sql("SELECT count(*) FROM incoming")?.query_row([], |row| row.get(0))
        };
        assert_eq!(file.write(1, left).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn large_refused_rows_are_retried_a_few_at_a_time() {
        for column in ["body", "headers", "key"] {
            let file = File::open(SqliteSettings::memory(), Seams::system("test")).unwrap();
            let insert = format!(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)
                 INSERT INTO incoming (topic, {column}, error) SELECT 'orders', zeroblob(1 << 20), 'no topic' FROM n"
            );
            let made = move |tx: &mut Tx<'_>| {
                tx.own.marks.tried_again = Some(i64::MIN);
                tx.connection().execute(&insert, [])
            };
            file.write(1, made).await.unwrap();
            let refused = |tx: &mut Tx<'_>| -> Sql<(bool, i64)> {
                let is_more = tx.try_again()?;
                let mut count = tx.sql("SELECT count(*) FROM incoming WHERE error IS NOT NULL")?;
                Ok((is_more, count.query_row([], |row| row.get(0))?))
            };
            for left in [(true, 6), (true, 2), (false, 0), (false, 0)] {
                assert_eq!(file.write(1, refused).await.unwrap(), left, "4 MiB in one transaction: {column}");
            }
        }
    }
}
