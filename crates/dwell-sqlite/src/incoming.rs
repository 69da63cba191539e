//! What other programs have put into the table `incoming`: it is taken in as if it were sent.

use crate::{accept::By, fault::Sql, flow::CHUNK, halt::item, row::read_bytes, tx::Tx};
use bytes::Bytes;
use dwell_core::{
    Address, ContentType, Due, Envelope, Error, ErrorKind, Headers, MessageId, Text, Timestamp, wire,
};
use rusqlite::{Row, types::FromSql};
use std::time::Duration;

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

impl Tx<'_> {
    /// Takes in what other programs have put there. Returns whether there is more.
    pub(crate) fn take_in(&mut self) -> Sql<bool> {
        if let Some(is_more) = self.taken_in {
            return Ok(is_more);
        }
        let incoming = self.incoming()?;
        let mut is_more = incoming.len() == CHUNK;
        for (number, incoming) in incoming {
            let taken = match incoming.and_then(|incoming| self.read(incoming)) {
                Ok((envelope, problem)) => {
                    let accepted = self.accept(&envelope, By::OtherProgram(problem.as_deref()));
                    item(accepted)?
                }
                Err(error) => Err(error),
            };
            match taken {
                // It waits there, with all behind it, until there is room.
                Err(error) if error.kind() == ErrorKind::StorageFull => {
                    is_more = false;
                    break;
                }
                Ok(_) => self.sql("DELETE FROM incoming WHERE number = ?1")?.execute([number])?,
                // It stays there, with the reason, for people to see.
                Err(error) => {
                    tracing::warn!(file = %self.file_name(), number, %error, "a row in `incoming` is not taken in");
                    self.sql("UPDATE incoming SET error = ?2 WHERE number = ?1")?
                        .execute((number, error.to_string()))?
                }
            };
        }
        self.taken_in = Some(is_more);
        Ok(is_more)
    }

    /// By their numbers; none as long as there is no room for them. What another program wrote into one row is no trouble for
    /// the others.
    fn incoming(&self) -> Sql<Vec<(i64, Result<Incoming, Error>)>> {
        let mut statement = self.sql(
            "SELECT number, topic, subscription, id, type, key, content_type, headers, body, due, delay
             FROM incoming INDEXED BY incoming_open WHERE error IS NULL ORDER BY number LIMIT ?1",
        )?;
        let (mut rows, mut incoming) = (statement.query([CHUNK as i64])?, Vec::new());
        while let Some(row) = rows.next()? {
            if incoming.is_empty() && !self.has_room()? {
                break;
            }
            let (key, body) = (read_bytes(row, 5)?, read_bytes(row, 8)?);
            incoming.push((row.get(0)?, Incoming::of(row, key, body)));
        }
        Ok(incoming)
    }

    fn read(&self, incoming: Incoming) -> Result<(Envelope, Option<Text>), Error> {
        let to = match incoming.subscription {
            Some(name) => Address::Subscription { topic: incoming.topic, name },
            None => Address::Topic(incoming.topic),
        };
        let due = match (incoming.due, incoming.delay) {
            (None, None) => Due::NOW,
            (Some(due), None) => Due::At(Timestamp(due)),
            (None, Some(delay)) => match u64::try_from(delay) {
                Ok(delay) => Due::After(Duration::from_millis(delay)),
                Err(_) => return Err(Error::new(ErrorKind::Invalid, "`delay` is negative")),
            },
            _ => return Err(Error::new(ErrorKind::Invalid, "both `due` and `delay` are given: give one")),
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

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}
