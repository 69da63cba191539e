//! Errors of the server or the network, as errors that say what to do. They never contain the
//! password: the client library's texts are only used where the server wrote them.

use crate::settings::RedisSettings;
use dwell_core::{Error, ErrorKind};
use redis::RedisError;

/// Returns the error of a call.
pub(crate) fn fault(settings: &RedisSettings, error: &RedisError) -> Error {
    let place = settings.place();
    let say = |kind, text: String| Error::new(kind, text);
    let detail = || {
        let detail = error.detail().unwrap_or_default();
        hide(settings, detail.chars().take(200).collect())
    };
    match error.code().unwrap_or_default() {
        "OOM" => say(
            ErrorKind::StorageFull,
            format!(
                "the Redis server at {place} has no memory left: raise its `maxmemory`, or let consumers catch up; \
                 stored messages are still handled"
            ),
        ),
        "MISCONF" => say(
            ErrorKind::StorageFull,
            format!("the Redis server at {place} cannot write to its disk: free disk space, and see its log"),
        ),
        "READONLY" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} is a replica: connect to its master"),
        ),
        "LOADING" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} is still reading its data: try again later"),
        ),
        "CLUSTERDOWN" | "MASTERDOWN" => say(
            ErrorKind::Unavailable,
            format!("the Redis cluster at {place} is down, or a part of it is: see `redis-cli cluster info`"),
        ),
        "TRYAGAIN" | "MOVED" | "ASK" | "BUSY" | "NOREPLICAS" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} cannot serve this call now: {}", detail()),
        ),
        "CROSSSLOT" => say(
            ErrorKind::Config,
            format!("the Redis cluster at {place} refused keys of two slots: {}", detail()),
        ),
        "WRONGTYPE" => say(
            ErrorKind::Conflict,
            format!(
                "a key of another program conflicts with the prefix `{}` at {place} ({}): use another `prefix`, \
                 or remove that key",
                settings.prefix,
                detail()
            ),
        ),
        "WRONGPASS" | "NOAUTH" => denied(settings, &place),
        "NOPERM" => say(
            ErrorKind::Denied,
            format!(
                "the user lacks permission for a command or key at {place}: {}; see `ACL LIST`",
                detail()
            ),
        ),
        _ => other(settings, error, &place, &detail),
    }
}

/// Returns the error of a failed connection attempt. The call had no effect.
pub(crate) fn unreachable(settings: &RedisSettings, error: &RedisError) -> Error {
    match error.is_timeout() && error.code().is_none() {
        false => fault(settings, error),
        true => Error::new(
            ErrorKind::Unavailable,
            format!(
                "no answer from the Redis server at {} in time; {}",
                settings.place(),
                tls_hint(settings)
            ),
        ),
    }
}

/// Returns the error of a write that was confirmed by a server that has been replaced by one
/// without it.
pub(crate) fn replaced(settings: &RedisSettings) -> Error {
    let text = format!(
        "the Redis server at {} was replaced by one that does not have what was just stored: try again",
        settings.place()
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn other(settings: &RedisSettings, error: &RedisError, place: &str, detail: &dyn Fn() -> String) -> Error {
    let say = |kind, text: String| Error::new(kind, text);
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return denied(settings, place);
    }
    if detail().contains("DB index is out of range") {
        let database = settings.database;
        return say(
            ErrorKind::Config,
            format!(
                "the Redis server at {place} has no database {database}: name another one after the `/` of the URL, or \
                 raise `databases` of the server"
            ),
        );
    }
    if error.is_timeout() {
        return say(
            ErrorKind::Timeout,
            format!(
                "no answer from the Redis server at {place} in time: the call may or may not have taken effect"
            ),
        );
    }
    if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::RESP3NotSupported) {
        return say(
            ErrorKind::Unavailable,
            format!("the server at {place} is not a Redis server: {}", tls_hint(settings)),
        );
    }
    if error.is_io_error()
        || error.is_connection_dropped()
        || error.is_cluster_error()
        || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
    {
        let what = hide(settings, error.to_string().chars().take(200).collect());
        return say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} is unreachable: {what}; {}", tls_hint(settings)),
        );
    }
    if error.kind() == redis::ErrorKind::InvalidClientConfig {
        let what = hide(settings, error.to_string().chars().take(200).collect());
        return say(ErrorKind::Config, format!("the connection to {place} is not possible: {what}"));
    }
    let code = error.code().unwrap_or_default();
    say(ErrorKind::Unavailable, format!("the Redis server at {place} returned `{code}`: {}", detail()))
        .with_retryable(false)
}

fn denied(settings: &RedisSettings, place: &str) -> Error {
    let text = match &settings.password {
        Some(_) => {
            format!("the Redis server at {place} does not accept this user name and password: check them")
        }
        None => format!(
            "the Redis server at {place} requires a password, but the URL has none: `redis://:password@…`"
        ),
    };
    Error::new(ErrorKind::Denied, text)
}

fn tls_hint(settings: &RedisSettings) -> &'static str {
    match settings.tls {
        true => {
            "check that it runs, that this port uses TLS, and that its certificate is signed by a trusted authority (`ca`)"
        }
        false => "check that it runs, and that this port does not use TLS; for TLS, write `rediss://`",
    }
}

/// Removes the password from a text.
fn hide(settings: &RedisSettings, text: String) -> String {
    match &settings.password {
        Some(password) if !password.expose().is_empty() => text.replace(password.expose(), "***"),
        _ => text,
    }
}
