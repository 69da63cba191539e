//! A configuration as people may see it: as TOML, without its secrets.

use super::{Config, SchedulerConfig, TransportConfig};
use dwell_core::{Secret, TransportUrl};
use std::fmt;

/// What is in force, as TOML that can be read back once the secrets, shown as `***`, are put in again.
///
/// ```
/// use dwell::config::Config;
///
/// let mut config = Config::default();
/// config.transport.url = "redis://app:hunter2@localhost".to_owned();
/// assert!(config.to_string().starts_with("[transport]\nurl = \"redis://app:***@localhost\"\n"));
/// ```
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = TransportConfig { url: masked(&self.transport.url), ..self.transport.clone() };
        let url = self.scheduler.url.as_deref().map(masked);
        let scheduler = SchedulerConfig { url, ..self.scheduler.clone() };
        let text = toml::to_string(&Self { transport, scheduler, ..self.clone() }).map_err(|_| fmt::Error)?;
        f.write_str(text.trim_end())
    }
}

impl fmt::Debug for TransportConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportConfig")
            .field("url", &masked(&self.url))
            .field("delay", &self.delay)
            .field("background", &self.background)
            .field("outbox", &self.outbox)
            .field("on_missing", &self.on_missing)
            .finish()
    }
}

impl fmt::Debug for SchedulerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerConfig")
            .field("url", &self.url.as_deref().map(masked))
            .field("allow_volatile", &self.allow_volatile)
            .finish()
    }
}

/// The URL without its secrets; one that cannot be taken apart is a secret as a whole.
fn masked(url: &str) -> String {
    TransportUrl::parse(url).map_or_else(|_| Secret::new(url).to_string(), |url| url.to_string())
}
