//! A message with its history, as stored on the server: a flat list of names and values.

use crate::places::{bytes, list, text};
use bytes::Bytes;
use dwell_core::{
    Address, Attempts, ContentType, Headers, Message, MessageFields, MessageId, OnConflict, State, Text,
    Timestamp, wire,
};
use redis::Value;

/// Encodes a message for scripts.
pub(crate) fn pack(message: &Message) -> Vec<u8> {
    let mut fields: Vec<(&str, &[u8])> =
        vec![("id", message.id.0.as_bytes()), ("type", message.kind.as_bytes())];
    let number = |number: u32| (number > 0).then(|| number.to_string());
    let (handled, failed) = (number(message.attempts.handled), number(message.attempts.failed));
    let (sent, headers) = (message.sent_at.map(|at| at.0.to_string()), message.headers.to_json());
    if let Some(key) = &message.key {
        fields.push(("key", key));
    }
    if message.content_type != ContentType::JSON {
        fields.push(("content-type", message.content_type.as_bytes()));
    }
    let texts = [("sent", &sent), ("handled", &handled), ("failed", &failed), ("headers", &headers)];
    fields.extend(texts.iter().filter_map(|(name, text)| Some((*name, text.as_ref()?.as_bytes()))));
    fields.push(("body", &message.body));

    let mut packed = Vec::with_capacity(64 + message.body.len());
    packed.push(0xdc);
    packed.extend((fields.len() as u16 * 2).to_be_bytes());
    for (name, value) in fields {
        pack_text(&mut packed, name.as_bytes());
        pack_text(&mut packed, value);
    }
    packed
}

/// Writes a text in MessagePack.
fn pack_text(packed: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        length @ 0..=31 => packed.push(0xa0 | length as u8),
        length @ 32..=0xff => packed.extend([0xd9, length as u8]),
        length @ 0x100..=0xffff => {
            packed.push(0xda);
            packed.extend((length as u16).to_be_bytes());
        }
        length => {
            packed.push(0xdb);
            packed.extend((length as u32).to_be_bytes());
        }
    }
    packed.extend(text);
}

/// A decoded item.
#[derive(Debug, Default)]
pub(crate) struct Item {
    pub(crate) message: Option<Message>,
    /// Why it is unreadable, if it is.
    pub(crate) problem: Option<Text>,
    pub(crate) number: Option<Text>,
    pub(crate) born: Option<Timestamp>,
    pub(crate) due: Option<Timestamp>,
    pub(crate) tries: u32,
    /// Its entry before it was put back for the first time.
    pub(crate) first: Option<Text>,
    pub(crate) to: Option<Text>,
    pub(crate) once: Option<OnConflict>,
    pub(crate) state: Option<State>,
    pub(crate) from: Option<Text>,
    pub(crate) home: Option<Text>,
    pub(crate) worker: Option<Text>,
    pub(crate) error: Option<Text>,
    pub(crate) result: Option<Bytes>,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) past: String,
}

/// Fields of a message.
#[derive(Default)]
struct Fields {
    id: Option<Text>,
    kind: Option<Text>,
    key: Option<Bytes>,
    content_type: Option<String>,
    sent: Option<String>,
    handled: Option<String>,
    failed: Option<String>,
    json: Option<String>,
    body: Bytes,
    is_foreign: bool,
    /// Problem that was found when it was taken in.
    wrong: Option<Text>,
    /// Fields that another program has added.
    others: Vec<(String, Bytes)>,
}

impl Item {
    /// Reads a flat list of names and values. `name` is the fallback id of an item without one: the
    /// name of its entry.
    pub(crate) fn read(value: Value, name: &str) -> Self {
        let (mut item, mut fields) = (Self::default(), Fields::default());
        let mut values = list(value).into_iter();
        while let (Some(field), Some(value)) = (values.next(), values.next()) {
            let (field, value) = (text(&field), bytes(value));
            item.read_field(&mut fields, field, value);
        }
        let id = fields.id.take().unwrap_or_else(|| name.into());
        let (message, problem) = fields.into_message(MessageId::from(&*id));
        (item.message, item.problem) = (Some(message), problem);
        item
    }

    fn read_field(&mut self, fields: &mut Fields, field: String, value: Vec<u8>) {
        let words = || String::from_utf8_lossy(&value).into_owned();
        let word = || Some(Text::from(words()));
        let time = || words().parse().ok().map(Timestamp);
        match field.as_str() {
            "id" => fields.id = word(),
            "type" => fields.kind = word(),
            "key" => fields.key = Some(value.into()),
            "content-type" => fields.content_type = Some(words()),
            "sent" => fields.sent = Some(words()),
            "handled" => fields.handled = Some(words()),
            "failed" => fields.failed = Some(words()),
            "headers" => fields.json = Some(words()),
            "body" => fields.body = value.into(),
            "foreign" => fields.is_foreign = true,
            "x-dwell-problem" => fields.wrong = word(),
            "n" => self.number = word(),
            "born" => self.born = time(),
            "due" => self.due = time(),
            "first" => self.first = word(),
            "tries" => self.tries = words().parse().unwrap_or(0),
            "to" => self.to = word(),
            "once" => {
                self.once = match value.first() {
                    Some(b'f') => Some(OnConflict::Fail),
                    _ => Some(OnConflict::Replace),
                }
            }
            "state" => self.state = state(&words()),
            "from" => self.from = word(),
            "home" => self.home = word(),
            "worker" => self.worker = word(),
            "error" => self.error = word(),
            "result" => self.result = Some(value.into()),
            "ended" => self.ended = time(),
            "past" => self.past = words(),
            _ => fields.others.push((field, value.into())),
        }
    }

    /// Returns the message, which `read` always finds.
    pub(crate) fn message(&mut self) -> Message {
        self.message.take().unwrap_or_else(|| Message::new("", "", ""))
    }
}

impl Fields {
    fn into_message(self, id: MessageId) -> (Message, Option<Text>) {
        let (mut headers, mut problem) = match self.json.as_deref().map(Headers::from_json) {
            None => (Headers::default(), None),
            Some(Ok(headers)) => (headers, None),
            Some(Err(problem)) => {
                let kept = self.json.clone().unwrap_or_default();
                (Headers::from_iter([("x-dwell-unreadable-headers", kept)]), Some(Text::from(problem)))
            }
        };
        if !self.is_foreign {
            let mut count = |text: &Option<String>, what: &str| match text.as_deref().map(str::parse) {
                None => 0,
                Some(Ok(count)) => count,
                Some(Err(_)) => {
                    problem = Some(format!("`{what}` is not a number").into());
                    0
                }
            };
            let attempts =
                Attempts { handled: count(&self.handled, "handled"), failed: count(&self.failed, "failed") };
            let message = MessageFields {
                id,
                kind: self.kind.unwrap_or_default().into(),
                key: self.key,
                content_type: self.content_type.map_or(ContentType::JSON, Into::into),
                sent_at: self.sent.and_then(|sent| sent.parse().ok()).map(Timestamp),
                headers,
                body: self.body,
                attempts,
            };
            return (message.into(), problem);
        }
        // Another program may write these as headers, with their usual names.
        headers.extend(self.others);
        let ours = [
            (wire::HANDLED_COUNT, self.handled),
            (wire::FAILED_COUNT, self.failed),
            (wire::SENT_AT, self.sent),
            (wire::CONTENT_TYPE, self.content_type),
        ];
        for (name, value) in ours {
            if let Some(value) = value {
                headers.set(name, value);
            }
        }
        let has_type = headers.get(wire::CONTENT_TYPE).is_some();
        headers.take(wire::ID);
        let (mut message, unreadable) = wire::from_headers(headers, self.key, self.body, || id.clone());
        message.id = id;
        if let Some(kind) = self.kind {
            message.kind = kind.into();
        }
        if !has_type && serde_json::from_slice::<serde::de::IgnoredAny>(&message.body).is_ok() {
            message.content_type = ContentType::JSON;
        }
        (message, self.wrong.or(problem).or(unreadable))
    }
}

/// Returns the state with this name.
pub(crate) fn state(name: &str) -> Option<State> {
    State::ALL.into_iter().find(|state| state.to_string() == name)
}

/// Parses a home: `topic/subscription`.
pub(crate) fn home(text: &str) -> (Text, Option<Text>) {
    let (topic, name) = text.split_once('/').unwrap_or((text, ""));
    (topic.into(), (!name.is_empty()).then(|| name.into()))
}

/// Returns the origin of a dead message as items store it; empty if it has none.
pub(crate) fn from(message: &Message, to: &Address) -> String {
    if !wire::is_dead_letter_topic(to.topic_name()) {
        return String::new();
    }
    match message.headers.get_text(wire::ORIGINAL_TOPIC) {
        None => String::new(),
        Some(topic) => {
            format!("{topic}/{}", message.headers.get_text(wire::SUBSCRIPTION).unwrap_or_default())
        }
    }
}
