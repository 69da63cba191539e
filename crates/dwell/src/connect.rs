//! Opens transports by URL.

use crate::trace::hash;
use dwell_core::{Error, ErrorKind, Result, Seams, Text, Transport, TransportUrl};
use std::sync::Arc;

/// The schemes of all transports, each with the feature that adds it. `memory://` needs no feature.
const TRANSPORTS: [(&str, Option<&str>); 5] = [
    ("memory", None),
    ("sqlite", Some("sqlite")),
    ("redis", Some("redis")),
    ("rediss", Some("redis")),
    ("kafka", Some("kafka")),
];
/// Transports that run in this process and use its clock.
const IN_PROCESS: [&str; 2] = ["memory", "sqlite"];
/// Schemes of planned transports.
const COMING: [&str; 7] = ["amqp", "postgres", "sqs", "servicebus", "mqtt", "mssql", "nats"];

/// Opens the transport of a URL.
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
        _ => Err(missing(&url)),
    }
}

/// Returns the scheme of a URL if its transport is a server, which has a separate clock.
pub(crate) fn server(url: &str) -> Option<&'static str> {
    let scheme = url.split(':').next()?;
    let mut known = TRANSPORTS.into_iter().map(|(known, _)| known);
    known.find(|known| scheme.eq_ignore_ascii_case(known) && !IN_PROCESS.contains(known))
}

/// Returns whether the URL is limited to this process.
pub(crate) fn is_memory(url: &str) -> Result<bool> {
    Ok(TransportUrl::parse(url)?.scheme() == "memory")
}

fn missing(url: &TransportUrl) -> Error {
    let scheme = url.scheme();
    let feature = TRANSPORTS.into_iter().find_map(|(known, feature)| feature.filter(|_| known == scheme));
    if let Some(feature) = feature {
        let text = format!(
            "this program was built without the transport `{scheme}://`: build `dwell` with the feature `{feature}`"
        );
        return Error::new(ErrorKind::Config, text);
    }
    let known = TRANSPORTS.map(|(known, _)| known);
    if COMING.contains(&scheme) {
        let [others @ .., last] = known.map(|known| format!("`{known}://`"));
        let text = format!(
            "this version of Dwell has no transport for `{scheme}://` yet: use {} or {last}",
            others.join(", ")
        );
        return Error::new(ErrorKind::Config, text);
    }
    url.unknown_scheme_error(&known)
}

/// Returns the name under which a store refers to the broker of a URL. Every process that uses the
/// broker computes the same name, regardless of the order of hosts in its URL. The name contains no
/// secrets, and differs between brokers.
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

    fn missing_text(scheme: &str) -> String {
        missing(&TransportUrl::parse(&format!("{scheme}://")).unwrap()).to_string()
    }

    #[test]
    fn the_error_for_a_disabled_transport_names_its_feature() {
        for (scheme, feature) in TRANSPORTS {
            let Some(feature) = feature else { continue };
            let expected = format!(
                "this program was built without the transport `{scheme}://`: build `dwell` with the feature `{feature}`"
            );
            assert_eq!(missing_text(scheme), expected);
        }
    }

    #[tokio::test]
    async fn only_disabled_transports_are_missing() {
        let is_on = |feature| match feature {
            "sqlite" => cfg!(feature = "sqlite"),
            "redis" => cfg!(feature = "redis"),
            "kafka" => cfg!(feature = "kafka"),
            other => panic!("unknown feature `{other}`"),
        };
        for (scheme, feature) in TRANSPORTS {
            // The unknown option makes each transport fail before it connects to a server.
            let opened = open(&format!("{scheme}://?no_such_option=1"), Seams::system("test")).await;
            let text = opened.err().expect("the URL is refused").to_string();
            let is_missing = feature.is_some_and(|feature| !is_on(feature));
            assert_eq!(text.contains("was built without"), is_missing, "{text}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_scheme_lists_the_known_ones() {
        let known = "known schemes: memory://, sqlite://, redis://, rediss://, kafka://";
        let typo = format!("there is no transport for `sqlit://`; did you mean `sqlite://`? {known}");
        assert_eq!(missing_text("sqlit"), typo);
        assert_eq!(missing_text("gopher"), format!("there is no transport for `gopher://`; {known}"));
        let use_one = "yet: use `memory://`, `sqlite://`, `redis://`, `rediss://` or `kafka://`";
        for scheme in COMING {
            let expected = format!("this version of Dwell has no transport for `{scheme}://` {use_one}");
            assert_eq!(missing_text(scheme), expected);
        }
    }

    #[test]
    fn broker_names_are_unique_and_independent_of_host_order() {
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
