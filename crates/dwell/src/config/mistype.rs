//! Which setting has the wrong type, and what it should be.
//!
//! Serde says what is wrong, but not where. So, once something is known to be wrong, each written value is put by itself
//! into the template, which is right everywhere else: the one that cannot be read there is the culprit.

use super::{
    Config,
    path::{Path, Step},
    refused,
    unknown::{ANY, template},
};
use dwell_core::Error;
use serde_json::Value;

/// What serde made of one value in its place.
pub(super) struct Mistyped {
    pub(super) path: Path,
    value: Value,
    problem: String,
}

impl Mistyped {
    /// The first value in `given` that cannot be read, where only known keys are left.
    pub(super) fn find(given: &Value) -> Option<Self> {
        let template = template();
        search(&template, &template, given, &Path::default())
    }

    /// Says which setting, what was found, and what is wanted.
    pub(super) fn error(&self, named: &str) -> Error {
        let Self { value, problem, .. } = self;
        let (found, wanted) = match problem.rsplit_once(", expected ") {
            Some((found, wanted)) => (found, Some(in_plain_words(wanted))),
            None => (problem.as_str(), None),
        };
        // Serde quotes what it found. A URL in the wrong place may hold a password all the same.
        if value.as_str().is_some_and(|text| text.contains("://")) {
            let wanted = wanted.unwrap_or("something else");
            return refused(format!("{named}: found a URL, which is not shown, wanted {wanted}"));
        }
        let starts = ["invalid type: ", "invalid value: ", "unknown variant "];
        let found = starts.iter().find_map(|start| found.strip_prefix(start)).map(in_plain_words);
        match (found, wanted, problem.strip_prefix("missing field ")) {
            (Some(found), Some(wanted), _) => refused(format!("{named}: found {found}, wanted {wanted}")),
            (_, _, Some(key)) => refused(format!("{named}: {key} is missing")),
            _ => refused(format!("{named}: {problem}")),
        }
    }
}

/// Whether `value` can be read at `path`.
pub(super) fn try_at(path: &Path, value: Value) -> Result<(), Mistyped> {
    attempt(&template(), path, &value)
}

fn search(template: &Value, known: &Value, given: &Value, path: &Path) -> Option<Mistyped> {
    match (known, given) {
        (Value::Object(known), Value::Object(given)) => given.iter().find_map(|(key, value)| {
            let inner = known.get(key).or_else(|| known.get(ANY))?;
            search(template, inner, value, &path.key(key))
        }),
        // An item may also be wrong as a whole, by what is missing in it.
        (Value::Array(known), Value::Array(given)) => given.iter().enumerate().find_map(|(index, item)| {
            let path = path.index(index);
            search(template, &known[0], item, &path).or_else(|| attempt(template, &path, item).err())
        }),
        _ => attempt(template, path, given).err(),
    }
}

fn attempt(template: &Value, path: &Path, value: &Value) -> Result<(), Mistyped> {
    let mut trial = template.clone();
    *place(&mut trial, path) = value.clone();
    serde_json::from_value::<Config>(trial).map(drop).map_err(|error| Mistyped {
        path: path.clone(),
        value: value.clone(),
        problem: error.to_string(),
    })
}

/// The place in the template that `path` leads to. All items of a list are tried in the place of its only one.
fn place<'a>(template: &'a mut Value, path: &Path) -> &'a mut Value {
    path.0.iter().fold(template, |value, step| match step {
        Step::Key(key) => &mut value[key.as_str()],
        Step::Index(_) => &mut value[0],
    })
}

/// Some of what serde says is for programmers.
fn in_plain_words(serde: &str) -> &str {
    match serde {
        "u32" => "a whole number from 0 to 4294967295",
        "usize" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" => "true or false",
        "sequence" => "a list",
        "map" => "a table",
        other => other,
    }
}
