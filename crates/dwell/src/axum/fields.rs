//! The fields of a request: read one by one, so that every mistake is named at once.

use super::{FieldProblem, Problem};
use ::axum::{body::Body, http::StatusCode};
use bytes::Bytes;
use dwell_core::{Due, Error, Timestamp, parse_duration, suggest};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::{collections::BTreeMap, time::Duration};

/// What a request adds around a payload or a result, at most.
const SLACK: usize = 64 * 1024;

/// A JSON object that is being read.
pub(super) struct Fields {
    fields: BTreeMap<String, Box<RawValue>>,
    errors: Vec<FieldProblem>,
}

impl Fields {
    /// From a body with a value of at most so many bytes in it; of no others than these names.
    pub(super) async fn read(body: Body, largest: usize, known: &[&'static str]) -> Result<Self, Problem> {
        let limit = largest.saturating_add(SLACK);
        let body: Bytes = ::axum::body::to_bytes(body, limit).await.map_err(|_| {
            let detail = format!(
                "the request is too large, or was not received whole: at most {limit} bytes are taken"
            );
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
        })?;
        let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&body).map_err(|error| {
            let place = format!("at line {} column {}", error.line(), error.column());
            let detail = format!("the body is not a JSON object {place}");
            Problem::invalid(vec![FieldProblem { pointer: String::new(), detail }])
        })?;
        let mut fields = Self { fields, errors: vec![] };
        let unknown: Vec<_> =
            fields.fields.keys().filter(|name| !known.contains(&name.as_str())).cloned().collect();
        for name in unknown {
            let shown: String = name.chars().take(60).flat_map(char::escape_default).collect();
            let hint = suggest(&name, known.iter().copied());
            let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            fields.wrong(&name, format!("there is no field `{shown}`{hint}"));
        }
        Ok(fields)
    }

    fn wrong(&mut self, name: &str, detail: impl Into<String>) {
        let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        self.errors.push(FieldProblem { pointer, detail: detail.into() });
    }

    /// A value as it was written, byte for byte.
    pub(super) fn raw(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.fields.remove(name)
    }

    fn value<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Option<T> {
        let raw = self.fields.remove(name)?;
        match serde_json::from_str::<Option<T>>(raw.get()) {
            Ok(value) => value,
            Err(_) => {
                self.wrong(name, format!("`{name}` is {expected}"));
                None
            }
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.value(name, "a text")
    }

    pub(super) fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        self.value(name, "a list of texts")
    }

    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        self.value(name, "a whole number from 0")
    }

    /// A text that must be there.
    pub(super) fn needed(&mut self, name: &str) -> String {
        let is_there = self.fields.contains_key(name);
        let value = self.text(name);
        if !is_there {
            self.wrong(name, format!("`{name}` is missing"));
        }
        value.unwrap_or_default()
    }

    fn parsed<T>(&mut self, name: &str, parsed: Result<T, Error>) -> Option<T> {
        parsed.map_err(|error| self.wrong(name, error.to_string())).ok()
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        let text = self.value::<String>(name, "a duration with its unit, like \"90s\" or \"1h30m\"")?;
        self.parsed(name, parse_duration(&text))
    }

    /// `delay` or `due_at`, and not both.
    pub(super) fn due(&mut self) -> Option<Due> {
        if self.fields.contains_key("delay") && self.fields.contains_key("due_at") {
            self.wrong("due_at", "`delay` and `due_at` say two things: give one of them");
        }
        let delay = self.duration("delay").map(Due::After);
        let at = self.fields.remove("due_at").and_then(|raw| {
            // A number as well as a text.
            let text = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
            self.parsed("due_at", Timestamp::parse(&text)).map(Due::At)
        });
        delay.or(at)
    }

    /// Refuses the request if anything was wrong with it.
    pub(super) fn finish(self) -> Result<(), Problem> {
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::invalid(self.errors)) }
    }

    /// Something else was found to be wrong.
    pub(super) fn check(&mut self, name: &str, is_right: bool, detail: impl Into<String>) {
        if !is_right {
            self.wrong(name, detail);
        }
    }
}
