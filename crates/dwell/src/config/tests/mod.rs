mod environment;
mod files;
mod page;
mod reading;
mod showing;
mod subscriptions;
mod unknown_keys;
mod validation;
mod wrong_types;

use super::Config;
use dwell_core::{ErrorKind, Result};
use std::fmt::Debug;

fn read(text: &str) -> Config {
    Config::from_toml(text).unwrap()
}

/// The text of an error, which must be one of the configuration.
fn refusal<T: Debug>(result: Result<T>) -> String {
    let error = result.expect_err("should be refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

fn with_env(config: Config, variables: &[(&str, &str)]) -> Result<Config> {
    config.with_env(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}
