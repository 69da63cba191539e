//! What the server or the network said, as an error that says what to do. Never with a password: the texts of the client
//! library are only used where the server itself wrote them.

use crate::settings::RedisSettings;
use dwell_core::{Error, ErrorKind};
use redis::RedisError;

/// The error of a call.
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
                "the Redis server at {place} has no memory left: raise its `maxmemory`, or let consumers catch up; what \
                 is there is still handled"
            ),
        ),
        "MISCONF" => say(
            ErrorKind::StorageFull,
            format!(
                "the Redis server at {place} cannot write to its disk: make room there; its log says more"
            ),
        ),
        "READONLY" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} is a replica, or has become one: connect to its master"),
        ),
        "LOADING" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} is still reading its data: it answers in a moment"),
        ),
        "CLUSTERDOWN" | "MASTERDOWN" => say(
            ErrorKind::Unavailable,
            format!("the Redis cluster at {place} is down, or a part of it: see `redis-cli cluster info`"),
        ),
        "TRYAGAIN" | "MOVED" | "ASK" | "BUSY" | "NOREPLICAS" => say(
            ErrorKind::Unavailable,
            format!("the Redis server at {place} cannot serve this now: {}", detail()),
        ),
        "CROSSSLOT" => say(
            ErrorKind::Config,
            format!("the Redis cluster at {place} refused keys of two slots: {}", detail()),
        ),
        "WRONGTYPE" => say(
            ErrorKind::Conflict,
            format!(
                "a key of another program is in the way at {place}, below the prefix `{}` ({}): use another `prefix`, \
                 or remove that key",
                settings.prefix,
                detail()
            ),
        ),
        "WRONGPASS" | "NOAUTH" => denied(settings, &place),
        "NOPERM" => say(
            ErrorKind::Denied,
            format!("the user has no right to a command or key at {place}: {}; see `ACL LIST`", detail()),
        ),
        _ => other(settings, error, &place, &detail),
    }
}

/// The error of a connection that could not be made: nothing was done.
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

/// The error of what was confirmed by a server that never heard of it: it took over meanwhile.
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
                "the Redis server at {place} has no database {database}: name another one behind the `/` of the URL, or \
                 raise `databases` of the server"
            ),
        );
    }
    if error.is_timeout() {
        return say(
            ErrorKind::Timeout,
            format!("no answer from the Redis server at {place} in time: it may or may not have been done"),
        );
    }
    if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::RESP3NotSupported) {
        return say(
            ErrorKind::Unavailable,
            format!("what answers at {place} is no Redis server: {}", tls_hint(settings)),
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
            format!("the Redis server at {place} is out of reach: {what}; {}", tls_hint(settings)),
        );
    }
    if error.kind() == redis::ErrorKind::InvalidClientConfig {
        let what = hide(settings, error.to_string().chars().take(200).collect());
        return say(ErrorKind::Config, format!("the connection to {place} cannot be made: {what}"));
    }
    let code = error.code().unwrap_or_default();
    say(ErrorKind::Unavailable, format!("the Redis server at {place} said `{code}`: {}", detail()))
        .with_retryable(false)
}

fn denied(settings: &RedisSettings, place: &str) -> Error {
    let text = match &settings.password {
        Some(_) => {
            format!("the Redis server at {place} does not accept this user name and password: check them")
        }
        None => format!(
            "the Redis server at {place} wants a password, and the URL has none: `redis://:password@…`"
        ),
    };
    Error::new(ErrorKind::Denied, text)
}

fn tls_hint(settings: &RedisSettings) -> &'static str {
    match settings.tls {
        true => {
            "is it there, does it speak TLS on that port, and is its certificate signed by whom we trust (`ca`)?"
        }
        false => "is it there, and does it speak plain text on that port? For TLS, write `rediss://`",
    }
}

/// A text of others, without the password.
fn hide(settings: &RedisSettings, text: String) -> String {
    match &settings.password {
        Some(password) if !password.expose().is_empty() => text.replace(password.expose(), "***"),
        _ => text,
    }
}
