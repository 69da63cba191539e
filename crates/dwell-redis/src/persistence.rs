//! Checks of the server's persistence at the start, with a warning if confirmed messages may be
//! lost.

use crate::{link::Link, places::text};
use dwell_core::{Error, ErrorKind, Result};

/// Returns whether confirmed messages survive a restart of the server. A server that may evict them
/// is refused.
pub(crate) async fn check(link: &Link) -> Result<bool> {
    let place = link.settings.place();
    let persistence = info(link, "persistence").await;
    let memory = info(link, "memory").await;
    let policy = field(&memory, "maxmemory_policy").unwrap_or("noeviction");
    if let Some(text) = eviction(policy, &place)? {
        tracing::warn!(server = %place, "{text}");
    }
    let is_durable = field(&persistence, "aof_enabled") == Some("1");
    if !is_durable {
        tracing::warn!(
            server = %place,
            "Redis server keeps no log (`appendonly no`): a restart may lose messages"
        );
        return Ok(false);
    }
    let fsync = link.query_all(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    // Without permission for this command, there is no warning.
    let fsync = fsync.map(|answer| words(&answer)).unwrap_or_default();
    match weakest(&fsync) {
        // While one write to the disk is in progress, the next is delayed, for up to two seconds.
        Some("everysec") => tracing::warn!(
            server = %place,
            "Redis server writes to its disk once a second (`appendfsync everysec`): a crash or power failure may lose \
             messages confirmed in the last two seconds; `appendfsync always` loses nothing"
        ),
        Some("no") => tracing::warn!(
            server = %place,
            "Redis server leaves writing to its disk to the operating system (`appendfsync no`): a power failure may lose \
             confirmed messages"
        ),
        _ => {}
    }
    Ok(true)
}

/// Returns the consequence of an eviction policy: an error if it may evict messages.
fn eviction(policy: &str, place: &str) -> Result<Option<String>> {
    if policy.starts_with("allkeys") {
        return Err(Error::new(
            ErrorKind::Config,
            format!(
                "the Redis server at {place} evicts any key when its memory is full (`maxmemory-policy {policy}`), \
                 including messages: set the policy to `noeviction`"
            ),
        ));
    }
    Ok(policy.starts_with("volatile").then(|| {
        format!(
            "Redis server evicts keys with an expiry when its memory is full (`maxmemory-policy {policy}`), including \
             records of handled messages and earlier calls, which may then be repeated; `noeviction` keeps them"
        )
    }))
}

async fn info(link: &Link, section: &str) -> String {
    let answer = link.query_all(redis::cmd("INFO").arg(section)).await;
    answer.map(|answer| flat(&answer)).unwrap_or_default()
}

/// Joins the answers of all servers of a cluster into one text.
fn flat(value: &redis::Value) -> String {
    match value {
        redis::Value::Map(servers) => servers.iter().map(|(_, info)| flat(info)).collect(),
        redis::Value::Array(servers) => servers.iter().map(flat).collect(),
        redis::Value::VerbatimString { text, .. } => text.clone(),
        other => text(other),
    }
}

/// Returns all words of an answer, of one server or of each.
fn words(value: &redis::Value) -> Vec<String> {
    match value {
        redis::Value::Map(pairs) => {
            pairs.iter().flat_map(|(name, of)| [words(name), words(of)].concat()).collect()
        }
        redis::Value::Array(items) => items.iter().flat_map(words).collect(),
        other => vec![text(other)],
    }
}

/// Returns the weakest setting of several servers.
fn weakest(said: &[String]) -> Option<&str> {
    ["no", "everysec", "always"].into_iter().find(|when| said.iter().any(|word| word == when))
}

/// Returns the worst value of a field, so that the weakest server of a cluster counts.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let values = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let values: Vec<_> = values.collect();
    let worst = |bad: &str| values.iter().find(|value| value.starts_with(bad));
    ["0", "allkeys", "volatile"].into_iter().find_map(worst).or(values.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_evicts_messages_is_refused_and_one_that_evicts_records_is_warned_about() {
        assert_eq!(eviction("allkeys-lru", "here").unwrap_err().kind(), ErrorKind::Config);
        let said = eviction("volatile-ttl", "here").unwrap().unwrap();
        assert!(said.contains("volatile-ttl") && said.contains("`noeviction`"), "{said}");
        assert_eq!(eviction("noeviction", "here").unwrap(), None);
        let policies = "maxmemory_policy:noeviction\r\nmaxmemory_policy:volatile-lru\r\n";
        assert_eq!(field(policies, "maxmemory_policy"), Some("volatile-lru"));
    }

    #[test]
    fn the_weakest_server_of_a_cluster_counts() {
        assert_eq!(field("aof_enabled:1\r\naof_enabled:1\r\n", "aof_enabled"), Some("1"));
        assert_eq!(field("aof_enabled:1\r\naof_enabled:0\r\n", "aof_enabled"), Some("0"));
        assert_eq!(field("aof_enabled:1\r\n", "maxmemory_policy"), None);
        let everysec = ["10.0.0.1:6379", "appendfsync", "always", "10.0.0.2:6379", "appendfsync", "everysec"];
        assert_eq!(weakest(&everysec.map(str::to_owned)), Some("everysec"));
        assert_eq!(weakest(&["appendfsync".to_owned(), "always".to_owned()]), Some("always"));
        assert_eq!(weakest(&[]), None);
    }
}
