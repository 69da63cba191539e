//! Keys that mean nothing are refused.
//!
//! What is known is not listed anywhere: it is the keys of a configuration with one of everything, written out. So a
//! new setting is known the moment that it has a field.

use super::{
    Config, Overlay, RetryConfig, TypeOverride, TypeRoute,
    path::{Layer, Path},
    read::{FILE_SUFFIX, SECRETS},
    refused,
};
use dwell_core::{Error, Result, RetryOverride, suggest};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Stands for any key, in a table whose keys are names that users choose.
pub(super) const ANY: &str = "*";

/// A configuration with one of everything that can be written, as a value. It can be read back.
pub(super) fn template() -> Value {
    let config = Config {
        retry: RetryConfig {
            overrides: vec![TypeOverride { kind: ANY.to_owned(), settings: RetryOverride::default() }],
            ..Default::default()
        },
        routes: vec![TypeRoute { kind: ANY.to_owned(), topic: ANY.to_owned() }],
        ..Config::default()
    };
    let mut template = value_of(&config);
    template["subscription"] = json!([Overlay::template()]);
    template
}

/// The same, with the keys of files that hold secrets.
pub(super) fn known() -> Value {
    let mut known = template();
    for (section, key) in SECRETS {
        known[section][format!("{key}{FILE_SUFFIX}")] = Value::Null;
    }
    known
}

/// A value that holds no map keyed by anything but text, and so can always be written.
pub(super) fn value_of(part: &impl Serialize) -> Value {
    serde_json::to_value(part).expect("settings are text, numbers, lists and tables")
}

/// Refuses the first key of `given` that is not [`known`], and whatever is not a table or a list where one
/// belongs.
pub(super) fn check(given: &Value, layer: Layer) -> Result<()> {
    walk(&known(), given, &Path::default(), layer)
}

fn walk(known: &Value, given: &Value, path: &Path, layer: Layer) -> Result<()> {
    match (known, given) {
        (Value::Object(known), Value::Object(given)) => given.iter().try_for_each(|(key, value)| {
            let inner = known.get(key).or_else(|| known.get(ANY));
            let inner = inner.ok_or_else(|| unknown(known, (key, value), path, layer))?;
            walk(inner, value, &path.key(key), layer)
        }),
        (Value::Array(known), Value::Array(given)) => {
            let mut items = given.iter().enumerate();
            items.try_for_each(|(index, item)| walk(&known[0], item, &path.index(index), layer))
        }
        (Value::Array(_), _) if layer == Layer::Environment => Err(refused(format!(
            "the environment cannot set lists, as variables that start with `{}` would: write `[[{path}]]` in the \
             configuration file",
            path.variable()
        ))),
        (Value::Array(_), _) => Err(refused(format!(
            "`{path}` is {}, but it must be a list of tables: write `[[{path}]]` before each of them",
            kind_of(given)
        ))),
        (Value::Object(known), _) => Err(refused(format!(
            "{} is {}, but it must be a table with some of the keys {}",
            path.named(layer),
            kind_of(given),
            listed(known)
        ))),
        (_, Value::Object(_)) if layer == Layer::Environment => Err(refused(format!(
            "{} sets nothing; did you mean `{}`?",
            whole(path.clone(), given).named(layer),
            path.variable()
        ))),
        _ => Ok(()),
    }
}

fn unknown(known: &Map<String, Value>, (key, value): (&str, &Value), path: &Path, layer: Layer) -> Error {
    // A URL in the wrong place may hold a password.
    if key.contains("://") {
        return refused(format!(
            "a URL, which is not shown, stands where a key belongs; known here: {}",
            listed(known)
        ));
    }
    let meant = suggest(key, known.keys().map(String::as_str));
    match (layer, meant) {
        (Layer::File, Some(meant)) => {
            refused(format!("unknown key `{}`; did you mean `{meant}`?", path.key(key)))
        }
        (Layer::File, None) => {
            refused(format!("unknown key `{}`; known here: {}", path.key(key), listed(known)))
        }
        (Layer::Environment, _) => {
            let named = whole(path.key(key), value).named(layer);
            let remedy = match meant {
                Some(meant) => format!("did you mean `{}`?", whole(path.key(meant), value).variable()),
                None => format!("known in that place: {}", listed(known)),
            };
            refused(format!("{named} sets nothing; {remedy}"))
        }
    }
}

/// The path on to the only value, in what one environment variable sets.
fn whole(path: Path, value: &Value) -> Path {
    match value.as_object().and_then(|keys| keys.iter().next()) {
        Some((key, value)) => whole(path.key(key), value),
        None => path,
    }
}

fn listed(known: &Map<String, Value>) -> String {
    known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// What kind of value it is, and nothing of the value itself.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}
