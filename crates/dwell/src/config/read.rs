//! Reads the layers: a TOML file, and the environment over it.
//!
//! Each layer becomes a value of tables and lists, in which unknown keys are refused and `…_file` keys are replaced by
//! what the files hold. Only then are layers laid over each other, so that `url` in the environment beats `url_file` in
//! the file and the other way round.

use super::{
    Config,
    mistype::{Mistyped, try_at},
    path::{Layer, Path},
    refused,
    subscription::rename_aliases,
    unknown::{self, value_of},
};
use dwell_core::Result;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{env, fs};

/// Settings, by section and key, that may be written as the name of a file that holds them.
pub(super) const SECRETS: [(&str, &str); 2] = [("transport", "url"), ("scheduler", "url")];
/// What is added to the name of a setting for that.
pub(super) const FILE_SUFFIX: &str = "_file";

const PREFIX: &str = "DWELL_";
const SEPARATOR: &str = "__";

impl Config {
    /// Reads TOML. What it does not mention has its default.
    ///
    /// A `url_file` is read at once; its path, if relative, starts at the working directory, like that of `sqlite://`.
    ///
    /// ```
    /// use dwell::Config;
    ///
    /// let config = Config::from_toml("[retry]\nmax_retries = 20\nmax_delay = \"1h\"")?;
    /// assert_eq!(config.retry.policy.max_retries, 20);
    /// assert_eq!(config.transport.url, "memory://", "what is not written has its default");
    ///
    /// let refused = Config::from_toml("[retry]\nmax_delay = \"1 fortnight\"").unwrap_err();
    /// assert!(refused.to_string().contains("retry.max_delay"), "{refused}");
    /// # Ok::<(), dwell::Error>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Self> {
        let table = toml::from_str::<toml::Table>(text).map_err(|error| syntax_error(text, &error))?;
        let mut given = to_json(toml::Value::Table(table));
        rename_in_subscriptions(&mut given)?;
        unknown::check(&given, Layer::File)?;
        read_files(&mut given, Layer::File)?;
        read(given)
    }

    /// The same, with what these environment variables set. Those that start with `DWELL_` and contain `__` are
    /// settings: `DWELL_RETRY__MAX_RETRIES` is `max_retries` in `[retry]`. All others are ignored, with a warning if one
    /// was most likely meant as a setting: `DWELL_RETRY_MAX_RETRIES`.
    ///
    /// ```
    /// use dwell::config::Config;
    ///
    /// let variables = [("DWELL_TRANSPORT__URL", "sqlite://orders.db"), ("DWELL_TOKEN", "no setting"), ("HOME", "/")];
    /// let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    /// let config = Config::default().with_env(variables)?;
    /// assert_eq!(config.transport.url, "sqlite://orders.db");
    /// # Ok::<(), dwell_core::Error>(())
    /// ```
    pub fn with_env(self, variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut layer = Value::Object(Map::new());
        for (name, value) in variables {
            let Some(keys) = setting(&name) else {
                warn_of_one_underscore(&name);
                continue;
            };
            let upper = name.to_uppercase();
            if name != upper {
                return Err(refused(format!(
                    "the environment variable {name:?} sets nothing: settings are in upper case, `{upper}`"
                )));
            }
            let given = keys.into_iter().rev().fold(Value::String(value), |inner, key| {
                Value::Object([(key.to_lowercase(), inner)].into_iter().collect())
            });
            unknown::check(&given, Layer::Environment)?;
            merge(&mut layer, given);
        }
        if layer.as_object().is_some_and(Map::is_empty) {
            return Ok(self);
        }
        read_files(&mut layer, Layer::Environment)?;
        find_types(&mut layer, &Path::default())?;
        let mut value = value_of(&self);
        merge(&mut value, layer);
        read(value)
    }

    /// Reads a file, lays the environment of this process over it, and [validates](Self::validate) the result.
    ///
    /// ```
    /// use dwell::{Bus, Config};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let path = std::env::temp_dir().join(format!("dwell-{}.toml", std::process::id()));
    /// # std::fs::write(&path, "[transport]\nurl = \"memory://\"").unwrap();
    /// let config = Config::load(&path)?; // for instance "dwell.toml"
    /// println!("{config}"); // without its secrets
    /// let bus = Bus::builder().config(config).start_configured().await?;
    /// # std::fs::remove_file(path).unwrap();
    /// # bus.shutdown().await }
    /// ```
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Self> {
        let path = path.as_ref();
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| refused(format!("cannot read the configuration file {shown}: {error}")))?;
        let config = Self::from_toml(&text).map_err(|error| refused(format!("{shown}: {error}")))?;
        let config = config.with_env(variables()?)?;
        config.validate()?;
        Ok(config)
    }
}

fn warn_of_one_underscore(name: &str) {
    if let Some(meant) = with_both_underscores(name) {
        tracing::warn!("the environment variable `{name}` sets nothing: the setting is `{meant}`");
    }
}

/// The setting that a variable with one underscore was most likely meant to be.
pub(super) fn with_both_underscores(name: &str) -> Option<String> {
    let (section, key) = name.strip_prefix(PREFIX)?.split_once('_')?;
    let is_known = unknown::known().get(section.to_lowercase())?.get(key.to_lowercase()).is_some();
    is_known.then(|| format!("{PREFIX}{section}{SEPARATOR}{key}").to_uppercase())
}

/// Lays one value over another: tables key by key, everything else as a whole.
pub(super) fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            over.into_iter().for_each(|(key, value)| merge(under.entry(key).or_insert(Value::Null), value));
        }
        (under, over) => *under = over,
    }
}

fn read(given: Value) -> Result<Config> {
    Config::deserialize(&given).map_err(|error| match Mistyped::find(&given) {
        Some(mistyped) => mistyped.error(&mistyped.path.named(Layer::File)),
        None => refused(format!("the configuration cannot be read: {error}")),
    })
}

/// The parser's own text quotes the line, which may hold a password; its message does not.
fn syntax_error(text: &str, error: &toml::de::Error) -> dwell_core::Error {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = &text.as_bytes()[..start];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    refused(format!("line {line} is not TOML: {}", error.message()))
}

fn to_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        // JSON has no infinity and would make it null, as if nothing had been written.
        toml::Value::Float(number) if !number.is_finite() => Value::String(number.to_string()),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(to_json).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, to_json(value))).collect(),
    }
}

fn rename_in_subscriptions(given: &mut Value) -> Result<()> {
    let Some(Value::Array(items)) = given.get_mut("subscription") else { return Ok(()) };
    for (index, item) in items.iter_mut().enumerate() {
        if let Value::Object(settings) = item {
            rename_aliases(settings)
                .map_err(|problem| refused(format!("`subscription[{index}]`: {problem}")))?;
        }
    }
    Ok(())
}

/// Puts what the files hold in the place of their names.
fn read_files(given: &mut Value, layer: Layer) -> Result<()> {
    for (section, key) in SECRETS {
        let Some(Value::Object(keys)) = given.get_mut(section) else { continue };
        let file_key = format!("{key}{FILE_SUFFIX}");
        let Some(file) = keys.remove(&file_key) else { continue };
        let section = Path::default().key(section);
        let named = section.key(&file_key).named(layer);
        if keys.contains_key(key) {
            let other = section.key(key).named(layer);
            return Err(refused(format!("{other} and {named} are both given: keep one of them")));
        }
        keys.insert(key.to_owned(), Value::String(read_file(&file, &named)?));
    }
    Ok(())
}

fn read_file(file: &Value, named: &str) -> Result<String> {
    let Some(file) = file.as_str() else {
        return Err(refused(format!("{named} must be a string, the path of a file")));
    };
    if file.contains("://") {
        return Err(refused(format!(
            "{named} is itself a URL, which is not shown: it must be the path of a file that holds one"
        )));
    }
    let text = fs::read_to_string(file)
        .map_err(|error| refused(format!("{named}: cannot read the file {file:?}: {error}")))?;
    match text.trim() {
        "" => Err(refused(format!("{named}: the file {file:?} is empty, but it must hold a URL"))),
        text => Ok(text.to_owned()),
    }
}

/// The keys that a variable stands for, if it is a setting.
fn setting(variable: &str) -> Option<Vec<&str>> {
    let keys = variable.strip_prefix(PREFIX)?;
    keys.contains(SEPARATOR).then(|| keys.split(SEPARATOR).collect())
}

/// The environment has text alone. A setting that is no text gets the number, `true` or `false` that the text says.
fn find_types(value: &mut Value, path: &Path) -> Result<()> {
    if let Value::Object(keys) = value {
        return keys.iter_mut().try_for_each(|(key, value)| find_types(value, &path.key(key)));
    }
    let Err(as_text) = try_at(path, value.clone()) else { return Ok(()) };
    let other = value.as_str().and_then(|text| text.parse::<Value>().ok());
    let fits =
        |other: &Value| (other.is_number() || other.is_boolean()) && try_at(path, other.clone()).is_ok();
    let Some(other) = other.filter(fits) else {
        return Err(as_text.error(&path.named(Layer::Environment)));
    };
    *value = other;
    Ok(())
}

/// The variables of this process that are settings. Others need not even be text.
fn variables() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for (name, value) in env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if setting(&name).is_none() {
            warn_of_one_underscore(&name);
            continue;
        }
        let value = value
            .into_string()
            .map_err(|_| refused(format!("the environment variable `{name}` is not UTF-8 text")))?;
        found.push((name, value));
    }
    Ok(found)
}
