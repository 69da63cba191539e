//! What can be known to be wrong without asking a transport.

use super::{Config, Overlay, TypeOverride, refused};
use dwell_core::{Capabilities, Error, Result, RetryOverride, RetryPolicy, TransportUrl, check_user_topic};
use dwell_engine::SubscriptionSettings;
use std::{collections::BTreeSet, fmt::Display};

/// What a transport can do that supports every setting.
const PERMISSIVE: Capabilities = Capabilities { counts_deliveries: true, ..Capabilities::LEAST };

impl Config {
    /// Whether this can work, as far as that can be known without a transport. The error names the first setting that
    /// cannot.
    ///
    /// ```
    /// use dwell::config::Config;
    ///
    /// let config = Config::from_toml("[retry]\njitter = 1.5")?;
    /// assert_eq!(
    ///     config.validate().unwrap_err().to_string(),
    ///     "`retry.jitter` is 1.5: it must lie between 0 and 1",
    /// );
    /// # Ok::<(), dwell_core::Error>(())
    /// ```
    pub fn validate(&self) -> Result<()> {
        TransportUrl::parse(&self.transport.url).map_err(at("transport.url"))?;
        if let Some(url) = &self.scheduler.url {
            TransportUrl::parse(url).map_err(at("scheduler.url"))?;
        }
        self.validate_retry()?;
        self.validate_routes()?;
        self.validate_subscriptions()
    }

    fn validate_retry(&self) -> Result<()> {
        check_policy("retry", &self.retry.policy)?;
        let mut seen = BTreeSet::new();
        for (index, TypeOverride { kind, settings }) in self.retry.overrides.iter().enumerate() {
            let path = format!("retry.override[{index}]");
            once(&mut seen, kind, || format!("`{path}` is the second override for the type {kind:?}"))?;
            check_kind(&path, kind)?;
            check_policy(&path, &settings.over(&self.retry.policy))?;
            if settings.handler_timeout.is_some_and(|timeout| timeout.is_zero()) {
                return Err(refused(format!(
                    "`{path}.handler_timeout` is zero: every run would time out; leave it out, or give it time"
                )));
            }
        }
        Ok(())
    }

    fn validate_routes(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (index, route) in self.routes.iter().enumerate() {
            let path = format!("route[{index}]");
            once(&mut seen, &route.kind, || {
                format!("`{path}` is the second route of the type {:?}", route.kind)
            })?;
            check_kind(&path, &route.kind)?;
            check_user_topic(&route.topic).map_err(at(format!("{path}.topic")))?;
        }
        Ok(())
    }

    fn validate_subscriptions(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (index, overlay) in self.subscriptions.iter().enumerate() {
            let path = format!("subscription[{index}]");
            let Overlay { topic, name, .. } = overlay;
            once(&mut seen, (topic, name), || {
                format!("`{path}` is the second entry for subscription {topic}/{name}")
            })?;
            let code = SubscriptionSettings::new(topic.clone(), name.clone());
            let settings = overlay.apply(code).map_err(at(&path))?;
            settings.validate(&PERMISSIVE).map_err(at(&path))?;
            check_delays(&path, overlay, &settings)?;
        }
        Ok(())
    }
}

/// The code may set one of the two delays of a policy, so they can be held against each other only where both are
/// written here.
fn check_delays(path: &str, overlay: &Overlay, settings: &SubscriptionSettings) -> Result<()> {
    let written = |key: &str| overlay.settings().get("retry").is_some_and(|retry| retry.get(key).is_some());
    if written("base_delay") && written("max_delay") {
        check_policy(&format!("{path}.retry"), &settings.retry)?;
    }
    for (kind, special) in &settings.overrides {
        if let RetryOverride { base_delay: Some(_), max_delay: Some(_), .. } = special {
            check_policy(&format!("{path}.overrides.{kind:?}"), &special.over(&settings.retry))?;
        }
    }
    Ok(())
}

fn check_policy(path: &str, policy: &RetryPolicy) -> Result<()> {
    let RetryPolicy { base_delay, max_delay, jitter, .. } = policy;
    if !(0.0..=1.0).contains(jitter) {
        return Err(refused(format!("`{path}.jitter` is {jitter}: it must lie between 0 and 1")));
    }
    if max_delay < base_delay {
        let [base, max] = [base_delay, max_delay].map(|delay| dwell_core::format_duration(*delay));
        return Err(refused(format!(
            "`{path}.max_delay` is {max}, shorter than `base_delay`, {base}: raise the one or lower the other"
        )));
    }
    Ok(())
}

fn check_kind(path: &str, kind: &str) -> Result<()> {
    if kind.is_empty() {
        return Err(refused(format!(
            "`{path}.type` is empty: it must be a full type name, such as `payments.charge`"
        )));
    }
    Ok(())
}

fn once<T: Ord>(seen: &mut BTreeSet<T>, item: T, text: impl FnOnce() -> String) -> Result<()> {
    if seen.insert(item) { Ok(()) } else { Err(refused(format!("{}: keep one of them", text()))) }
}

/// Puts the path before an error, which is one of the configuration from then on.
fn at(path: impl Display) -> impl FnOnce(Error) -> Error {
    move |error| refused(format!("`{path}`: {error}"))
}
