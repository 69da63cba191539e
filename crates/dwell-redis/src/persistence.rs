//! What the server does to keep what it has confirmed: it is asked at the start, and said where it is less than people expect.

use crate::{link::Link, places::text};
use dwell_core::{Error, ErrorKind, Result};

/// Whether what is confirmed survives a restart of the server. A server that may throw keys away is refused.
pub(crate) async fn check(link: &Link) -> Result<bool> {
    let place = link.settings.place();
    let persistence = info(link, "persistence").await;
    let memory = info(link, "memory").await;
    let policy = field(&memory, "maxmemory_policy").unwrap_or("noeviction");
    if policy.starts_with("allkeys") {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "the Redis server at {place} throws away any key when its memory is full (`maxmemory-policy {policy}`), \
                 messages included: set it to `noeviction`"
            ),
        ));
    }
    let is_durable = field(&persistence, "aof_enabled") == Some("1");
    if !is_durable {
        tracing::warn!(
            server = %place,
            "this Redis server keeps no log of what it confirms (`appendonly no`): a restart may lose messages"
        );
        return Ok(false);
    }
    let fsync = link.query(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    // Not everybody may ask; then nothing is said.
    let fsync = fsync.map(crate::places::list).unwrap_or_default();
    match fsync.get(1).map(text).as_deref() {
        // While one write to the disk is under way, the next is put off, for up to two seconds.
        Some("everysec") => tracing::warn!(
            server = %place,
            "this Redis server writes to its disk once a second (`appendfsync everysec`): if it is killed, or the power goes, \
             what it confirmed in the last two seconds may be lost; `appendfsync always` loses nothing"
        ),
        Some("no") => tracing::warn!(
            server = %place,
            "this Redis server leaves writing to its disk to the operating system (`appendfsync no`): a power cut may lose \
             what was confirmed"
        ),
        _ => {}
    }
    Ok(true)
}

async fn info(link: &Link, section: &str) -> String {
    let answer = link.query(redis::cmd("INFO").arg(section)).await;
    answer.map(|answer| flat(&answer)).unwrap_or_default()
}

/// A cluster answers for each server: all of them are one text.
fn flat(value: &redis::Value) -> String {
    match value {
        redis::Value::Map(servers) => servers.iter().map(|(_, info)| flat(info)).collect(),
        redis::Value::Array(servers) => servers.iter().map(flat).collect(),
        redis::Value::VerbatimString { text, .. } => text.clone(),
        other => text(other),
    }
}

/// The first value of this name that is not the best one, so that the weakest server of a cluster counts.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut values =
        info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let first = values.next()?;
    Some(
        values
            .find(|value| *value != first && (*value == "0" || value.starts_with("allkeys")))
            .unwrap_or(first),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_server_of_a_cluster_counts() {
        assert_eq!(field("aof_enabled:1\r\naof_enabled:1\r\n", "aof_enabled"), Some("1"));
        assert_eq!(field("aof_enabled:1\r\naof_enabled:0\r\n", "aof_enabled"), Some("0"));
        assert_eq!(field("aof_enabled:1\r\n", "maxmemory_policy"), None);
    }
}
