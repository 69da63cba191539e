//! From a URL to a transport.

use crate::trace::hash;
use dwell_core::{Error, ErrorKind, Result, Seams, Text, Transport, TransportUrl, suggest};
use std::sync::Arc;

/// Schemes of transports that a feature brings, with its name.
const FEATURES: [(&str, &str); 4] =
    [("sqlite", "sqlite"), ("redis", "redis"), ("rediss", "redis"), ("kafka", "kafka")];
/// Schemes of transports that are not there yet.
const COMING: [&str; 7] = ["amqp", "postgres", "sqs", "servicebus", "mqtt", "mssql", "nats"];

/// Opens the transport that a URL names.
pub(crate) async fn open(url: &str, seams: Seams) -> Result<Arc<dyn Transport>> {
    let url = TransportUrl::parse(url)?;
    match url.scheme() {
        "memory" => Ok(Arc::new(dwell_engine::memory::connect(&url, seams)?)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(dwell_sqlite::connect(&url, seams)?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(Arc::new(dwell_redis::connect(&url, seams).await?)),
        #[cfg(feature = "kafka")]
        "kafka" => Ok(Arc::new(dwell_kafka::connect(&url, seams).await?)),
        scheme => Err(missing(scheme)),
    }
}

fn missing(scheme: &str) -> Error {
    if let Some((_, feature)) = FEATURES.iter().find(|(known, _)| *known == scheme) {
        let text = format!(
            "this program was built without the transport of `{scheme}://`: build `dwell` with the feature `{feature}`"
        );
        return Error::new(ErrorKind::Config, text);
    }
    if COMING.contains(&scheme) {
        let text = format!(
            "this version of Dwell has no transport for `{scheme}://` yet: use `memory://`, `sqlite://`, `redis://` or \
             `kafka://`"
        );
        return Error::new(ErrorKind::Config, text);
    }
    let hint = suggest(scheme, ["memory", "sqlite", "redis", "rediss", "kafka"])
        .map(|meant| format!("; did you mean `{meant}://`?"))
        .unwrap_or_default();
    Error::new(ErrorKind::Config, format!("there is no transport for `{scheme}://`{hint}"))
}

/// How a store calls the broker behind this URL: the same for every process that uses that broker, however it writes the
/// list of its hosts, and without what must stay secret. Two brokers never have the same name.
pub(crate) fn via(url: &str) -> Result<Text> {
    let url = TransportUrl::parse(url)?;
    let port = |port: &Option<u16>| port.map(|port| format!("-{port}")).unwrap_or_default();
    let mut hosts: Vec<_> = url.hosts().iter().map(|(host, of)| format!("{host}{}", port(of))).collect();
    hosts.sort();
    let mut parts = vec![url.scheme().as_bytes(), url.path().as_bytes()];
    parts.extend(hosts.iter().map(String::as_bytes));
    let shown = format!("{}-{}", url.scheme(), hosts.first().map_or("", String::as_str));
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let shown: String = shown.chars().map(plain).take(60).collect();
    Ok(format!("{}-{:016x}", shown.trim_matches('-'), hash(&parts) as u64).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_that_this_build_lacks_is_an_error_that_names_the_feature() {
        assert!(missing("sqlite").to_string().contains("the feature `sqlite`"));
        assert!(missing("rediss").to_string().contains("the feature `redis`"));
        assert!(missing("sqlit").to_string().contains("did you mean `sqlite://`?"));
    }

    #[test]
    fn a_broker_has_one_name_however_its_hosts_are_listed_and_no_other_broker_has_it() {
        let name = |url: &str| via(url).unwrap();
        assert_eq!(name("kafka://a:1,b:2/x?group=1"), name("kafka://user:secret@b:2,a:1/x?group=2"));
        let different =
            ["redis://h/a-b", "redis://h-a/b", "redis://h:1/a-b", "rediss://h/a-b", "redis://h/a"];
        let names: std::collections::BTreeSet<_> = different.into_iter().map(name).collect();
        assert_eq!(names.len(), different.len(), "{names:?}");
        assert!(!name("redis://user:hunter2@host/0").contains("hunter2"));
        assert!(names.iter().all(|name| dwell_core::check_subscription(name).is_ok()), "{names:?}");
    }
}
