//! Settings from outside: `dwell.toml` and the environment.
//!
//! Three layers, the later beats the earlier: what is built in, a TOML file, the environment (`DWELL_SECTION__KEY`).
//! Each is laid over the one before key by key, and an unknown key is refused with its path, so that a slip of the pen
//! never passes for a default. A URL may hold a password: what is printed from here, errors included, never shows it.
//!
//! ```
//! use dwell::config::Config;
//!
//! let file = r#"
//!     [transport]
//!     url = "sqlite://orders.db"
//!
//!     [[subscription]]
//!     topic = "orders.placed"
//!     name = "mail"
//!     concurrency = 8
//! "#;
//! let environment = [("DWELL_RETRY__MAX_RETRIES".to_owned(), "3".to_owned())];
//! let config = Config::from_toml(file)?.with_env(environment)?;
//! config.validate()?;
//!
//! assert_eq!(config.transport.url, "sqlite://orders.db");
//! assert_eq!(config.retry.policy.max_retries, 3);
//! assert!(config.overlay("orders.placed", "mail").is_some());
//! # Ok::<(), dwell_core::Error>(())
//! ```

mod mistype;
mod path;
mod read;
mod shown;
mod subscription;
mod unknown;
mod validate;

#[cfg(test)]
mod tests;

pub use subscription::Overlay;

use dwell_core::{Error, ErrorKind, OnMissing, RetryOverride, RetryPolicy};
use dwell_engine::DelayMode;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Everything that can be set from outside. The default is what is in force where nothing is written.
///
/// `Serialize` writes it as it is, secrets included; `Display` and `Debug` hide them.
///
/// ```
/// use dwell::config::Config;
///
/// let error = Config::from_toml("[retry]\nmax_retrys = 3").unwrap_err();
/// assert_eq!(error.to_string(), "unknown key `retry.max_retrys`; did you mean `max_retries`?");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What carries the messages.
    pub transport: TransportConfig,
    /// The store where messages wait that the transport cannot hold.
    pub scheduler: SchedulerConfig,
    /// When failures are tried again.
    pub retry: RetryConfig,
    /// Which types go to another topic than their own.
    #[serde(rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<TypeRoute>,
    /// What single subscriptions do differently from what the code says.
    #[serde(rename = "subscription", skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<Overlay>,
}

/// `[transport]`: what carries the messages.
///
/// ```
/// use dwell::config::{Background, Config};
/// use dwell::settings::DelayMode;
///
/// let config = Config::from_toml(r#"
///     [transport]
///     url = "kafka://localhost:9092"
///     delay = "scheduler"
///     background = "elsewhere"
///     [scheduler]
///     url = "sqlite://waiting.db"
/// "#)?;
/// assert_eq!(config.transport.delay, DelayMode::Scheduler);
/// assert_eq!(config.transport.background, Background::Elsewhere);
/// # Ok::<(), dwell::Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportConfig {
    /// Where it is, and with which options. In a file or the environment also as `url_file`, which names a file that
    /// holds it.
    pub url: String,
    /// Who holds a message while it waits.
    pub delay: DelayMode,
    /// Who brings waiting messages back and keeps the transport in order.
    pub background: Background,
    /// Every send goes by way of the store of `[scheduler]`, also what is due at once: it is confirmed once the store has
    /// it, whether the broker is away at the moment or not.
    pub outbox: bool,
    /// What to do if a topic is missing that is only sent to.
    pub on_missing: OnMissing,
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            url: "memory://".to_owned(),
            delay: DelayMode::default(),
            background: Background::default(),
            outbox: false,
            on_missing: OnMissing::Create,
        }
    }
}

/// Who does the work that is nobody's message: forwarding what is due, and what a transport needs done now and then.
///
/// ```
/// use dwell::config::{Background, Config};
///
/// // A process that only answers requests; others bring back what waits.
/// let mut config = Config::default();
/// config.transport.background = Background::Elsewhere;
/// assert!(config.to_string().contains("background = \"elsewhere\""));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Background {
    /// Every process that has started a bus. They share it.
    #[default]
    Here,
    /// Other processes. If there are none, what waits in a store stays there.
    Elsewhere,
}

/// `[scheduler]`: the store where messages wait that the transport cannot hold.
///
/// ```
/// use dwell::Config;
///
/// let config = Config::from_toml("[scheduler]\nurl = \"redis://:secret@localhost\"")?;
/// assert_eq!(config.scheduler.url.as_deref(), Some("redis://:secret@localhost"));
/// assert!(!format!("{config:?} {config}").contains("secret"));
/// # Ok::<(), dwell::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// The transport that is the store. In a file or the environment also as `url_file`.
    pub url: Option<String>,
    /// Whether a store that forgets at a restart may stand behind a transport that does not.
    pub allow_volatile: bool,
}

/// `[retry]`: when failures are tried again.
///
/// ```
/// use dwell::config::Config;
///
/// let config = Config::from_toml(r#"
///     [retry]
///     max_delay = "1h"
///     [[retry.override]]
///     type = "payments.charge"
///     max_retries = 20
/// "#)?;
/// assert_eq!(config.retry.policy.max_retries, 5);
/// assert_eq!(config.overrides()["payments.charge"].max_retries, Some(20));
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RetryConfig {
    /// For every type. A field that is not written has its built-in value.
    #[serde(flatten)]
    pub policy: RetryPolicy,
    /// What single types do differently. A list, because the name of a type has dots in it.
    #[serde(rename = "override", skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TypeOverride>,
}

impl<'de> Deserialize<'de> for RetryConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = Map::deserialize(deserializer)?;
        let overrides = keys.remove("override").map_or(Ok(Vec::new()), serde_json::from_value);
        Ok(Self { overrides: overrides.map_err(de::Error::custom)?, policy: rest(keys)? })
    }
}

/// `[[retry.override]]`: what one type does differently.
///
/// ```
/// use dwell::Config;
/// use std::time::Duration;
///
/// let config = Config::from_toml(r#"
///     [[retry.override]]
///     type = "payments.charge"
///     handler_timeout = "2m"
/// "#)?;
/// let charge = &config.retry.overrides[0];
/// assert_eq!((&*charge.kind, charge.settings.handler_timeout), ("payments.charge", Some(Duration::from_secs(120))));
/// # Ok::<(), dwell::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypeOverride {
    /// The full type name, as on the wire.
    #[serde(rename = "type")]
    pub kind: String,
    /// A field that is not written falls back to the policy of all.
    #[serde(flatten)]
    pub settings: RetryOverride,
}

impl<'de> Deserialize<'de> for TypeOverride {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut keys = Map::deserialize(deserializer)?;
        Ok(Self { kind: take_text(&mut keys, "type")?, settings: rest(keys)? })
    }
}

/// `[[route]]`: a type that goes to another topic than its own.
///
/// ```
/// use dwell::{config::{Config, TypeRoute}, prelude::*};
///
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced { order: u64 }
/// # async fn confirm(_: OrderPlaced) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let route = TypeRoute { kind: "orders.placed".into(), topic: "legacy-orders".into() };
/// let config = Config { routes: vec![route], ..Config::default() };
/// let bus = Bus::builder().config(config).subscribe("mail", confirm).start("memory://").await?;
/// assert_eq!(&*bus.publish(OrderPlaced { order: 42 }).await?.topic, "legacy-orders");
/// # bus.shutdown().await }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeRoute {
    /// The full type name, as on the wire.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where its messages are sent.
    pub topic: String,
}

impl Config {
    /// What single types do differently, by their full type name.
    ///
    /// ```
    /// use dwell::Config;
    ///
    /// let config = Config::from_toml("[[retry.override]]\ntype = \"payments.charge\"\nmax_retries = 0")?;
    /// assert_eq!(config.overrides()["payments.charge"].max_retries, Some(0));
    /// # Ok::<(), dwell::Error>(())
    /// ```
    pub fn overrides(&self) -> BTreeMap<String, RetryOverride> {
        self.retry.overrides.iter().map(|special| (special.kind.clone(), special.settings)).collect()
    }

    /// The topic that messages of this type are sent to, if it is set here.
    ///
    /// ```
    /// use dwell::config::Config;
    ///
    /// let config = Config::from_toml("[[route]]\ntype = \"payments.charge\"\ntopic = \"payments\"")?;
    /// assert_eq!(config.topic_of("payments.charge"), Some("payments"));
    /// assert_eq!(config.topic_of("payments.refund"), None);
    /// # Ok::<(), dwell_core::Error>(())
    /// ```
    pub fn topic_of(&self, kind: &str) -> Option<&str> {
        self.routes.iter().find(|route| route.kind == kind).map(|route| route.topic.as_str())
    }

    /// What is set here about the subscription `name` of `topic`, if anything is.
    ///
    /// ```
    /// use dwell::Config;
    ///
    /// let config = Config::from_toml("[[subscription]]\ntopic = \"orders\"\nname = \"mail\"\nbatch = 50")?;
    /// assert_eq!(config.overlay("orders", "mail").unwrap().settings()["batch"], 50);
    /// assert!(config.overlay("orders", "stock").is_none());
    /// # Ok::<(), dwell::Error>(())
    /// ```
    pub fn overlay(&self, topic: &str, name: &str) -> Option<&Overlay> {
        self.subscriptions.iter().find(|overlay| &*overlay.topic == topic && &*overlay.name == name)
    }
}

/// Takes the text under `key` out of a table.
fn take_text<E: de::Error>(keys: &mut Map<String, Value>, key: &'static str) -> Result<String, E> {
    let value = keys.remove(key).ok_or_else(|| E::missing_field(key))?;
    serde_json::from_value(value).map_err(E::custom)
}

/// Reads what is left of a table, unknown keys refused. In place of `flatten`, which would ignore them.
fn rest<T: de::DeserializeOwned, E: de::Error>(keys: Map<String, Value>) -> Result<T, E> {
    serde_json::from_value(Value::Object(keys)).map_err(E::custom)
}

fn refused(text: impl Into<Box<str>>) -> Error {
    Error::new(ErrorKind::Config, text)
}
