//! What is set from outside about one subscription: an overlay over what the code says.

use super::{
    read::merge,
    refused, take_text,
    unknown::{ANY, value_of},
};
use dwell_core::{Result, RetryOverride, Text};
use dwell_engine::SubscriptionSettings;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

/// Second names of settings, and their first.
const ALIASES: [(&str, &str); 2] = [("requeue_count", "max_runs"), ("requeue_delay", "defer_delay")];

/// `[[subscription]]`: the settings of one subscription that are written, and no others.
///
/// ```
/// use dwell::config::Config;
/// use dwell_engine::SubscriptionSettings;
///
/// let config = Config::from_toml(r#"
///     [[subscription]]
///     topic = "orders"
///     name = "mail"
///     concurrency = 8
///     retry.max_retries = 20
/// "#)?;
/// let code = SubscriptionSettings { batch: 50, ..SubscriptionSettings::new("orders", "mail") };
/// let settings = config.overlay("orders", "mail").unwrap().apply(code)?;
/// assert_eq!((settings.concurrency, settings.batch), (8, 50));
/// assert_eq!((settings.retry.max_retries, settings.retry.jitter), (20, 0.15));
/// # Ok::<(), dwell_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlay {
    /// The topic of the subscription that is meant.
    pub topic: Text,
    /// Its name.
    pub name: Text,
    #[serde(flatten)]
    settings: Map<String, Value>,
}

impl Overlay {
    /// The settings that are written, under their first names.
    ///
    /// ```
    /// use dwell::Config;
    ///
    /// let config = Config::from_toml(
    ///     "[[subscription]]\ntopic = \"orders\"\nname = \"mail\"\nrequeue_count = 7 # as it was called elsewhere",
    /// )?;
    /// assert_eq!(config.subscriptions[0].settings()["max_runs"], 7);
    /// # Ok::<(), dwell::Error>(())
    /// ```
    pub fn settings(&self) -> &Map<String, Value> {
        &self.settings
    }

    /// The same settings, with those that are written here in place of their own. Tables such as `retry` are laid over
    /// each other key by key. All durations are whole milliseconds afterwards, rounded up.
    ///
    /// ```
    /// use dwell::{Config, settings::SubscriptionSettings};
    ///
    /// let config = Config::from_toml("[[subscription]]\ntopic = \"orders\"\nname = \"mail\"\nbatch = 50")?;
    /// let overlay = &config.subscriptions[0];
    /// assert_eq!(overlay.apply(SubscriptionSettings::new("orders", "mail"))?.batch, 50);
    /// assert!(overlay.apply(SubscriptionSettings::new("orders", "stock")).is_err(), "it is about another one");
    /// # Ok::<(), dwell::Error>(())
    /// ```
    pub fn apply(&self, settings: SubscriptionSettings) -> Result<SubscriptionSettings> {
        if (&settings.topic, &settings.name) != (&self.topic, &self.name) {
            return Err(refused(format!(
                "the settings of subscription {}/{} cannot be applied to subscription {}/{}: topic and name say which \
                 one is meant, and cannot be changed",
                self.topic, self.name, settings.topic, settings.name
            )));
        }
        self.over(&settings)
            .map_err(|error| refused(format!("subscription {}/{}: {error}", self.topic, self.name)))
    }

    fn over(&self, settings: &SubscriptionSettings) -> Result<SubscriptionSettings, serde_json::Error> {
        let mut value = value_of(settings);
        self.settings.iter().for_each(|(key, setting)| merge(&mut value[key.as_str()], setting.clone()));
        serde_json::from_value(value)
    }

    /// Every setting that an overlay can have.
    pub(super) fn template() -> Value {
        let overrides = [(ANY.to_owned(), RetryOverride::default())].into();
        value_of(&SubscriptionSettings { overrides, ..SubscriptionSettings::new(ANY, ANY) })
    }
}

impl<'de> Deserialize<'de> for Overlay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut settings = Map::deserialize(deserializer)?;
        rename_aliases(&mut settings).map_err(de::Error::custom)?;
        remove_nulls(&mut settings);
        let topic = take_text(&mut settings, "topic")?.into();
        let name = take_text(&mut settings, "name")?.into();
        let overlay = Self { topic, name, settings };
        // What can be read over the defaults can be read over any settings: the type of one does not depend on another.
        let defaults = SubscriptionSettings::new(overlay.topic.clone(), overlay.name.clone());
        overlay.over(&defaults).map_err(de::Error::custom)?;
        Ok(overlay)
    }
}

/// Writes second names as first names, so that all that follows knows one name for one thing.
pub(super) fn rename_aliases(settings: &mut Map<String, Value>) -> Result<(), String> {
    for (alias, name) in ALIASES {
        let Some(setting) = settings.remove(alias) else { continue };
        if settings.insert(name.to_owned(), setting).is_some() {
            return Err(format!("`{alias}` and `{name}` are two names for one setting: keep one of them"));
        }
    }
    Ok(())
}

/// What is null is not written, in the forms of a configuration that have a null at all.
fn remove_nulls(settings: &mut Map<String, Value>) {
    settings.retain(|_, setting| !setting.is_null());
    settings.values_mut().filter_map(Value::as_object_mut).for_each(remove_nulls);
}
