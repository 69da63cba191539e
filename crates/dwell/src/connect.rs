//! From a URL to a transport.

use dwell_core::{Error, ErrorKind, Result, Seams, Text, Transport, TransportUrl, suggest};
use std::sync::Arc;

/// Schemes of transports, with the feature that brings each.
const FEATURES: [(&str, &str); 11] = [
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("kafka", "kafka"),
    ("amqp", "rabbitmq"),
    ("postgres", "postgres"),
    ("sqs", "sqs"),
    ("servicebus", "servicebus"),
    ("mqtt", "mqtt"),
    ("mssql", "mssql"),
    ("nats", "nats"),
];

/// Opens the transport that a URL names.
pub(crate) async fn open(url: &str, seams: Seams) -> Result<Arc<dyn Transport>> {
    let url = TransportUrl::parse(url)?;
    match url.scheme() {
        "memory" => Ok(Arc::new(dwell_engine::memory::connect(&url, seams)?)),
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
    let known = FEATURES.iter().map(|(scheme, _)| *scheme).chain(["memory"]);
    let hint =
        suggest(scheme, known).map(|meant| format!("; did you mean `{meant}://`?")).unwrap_or_default();
    Error::new(ErrorKind::Config, format!("there is no transport for `{scheme}://`{hint}"))
}

/// How a store calls the broker behind this URL: the same for every process that uses that broker, and without what
/// may differ or must stay secret.
pub(crate) fn via(url: &str) -> Result<Text> {
    let url = TransportUrl::parse(url)?;
    let hosts: Vec<_> = url
        .hosts()
        .iter()
        .map(|(host, port)| port.map_or_else(|| host.clone(), |port| format!("{host}-{port}")))
        .collect();
    let place = format!("{}-{}-{}", url.scheme(), hosts.join("-"), url.path());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = place.chars().map(plain).take(100).collect();
    Ok(name.trim_matches('-').into())
}
