//! Topics whose records are kept until somebody deletes them: dead letters, and records that the
//! relay has parked.

use crate::cluster::Cluster;
use dwell_core::{Text, wire};
use rdkafka::admin::ConfigResource;

/// Each setting with its value and the reason. The broker's defaults may differ.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("cleanup.policy", "delete", "compaction drops all but the last record of a key"),
    ("retention.ms", "-1", "older records are dropped"),
    ("retention.bytes", "-1", "a full topic drops its oldest records"),
];

/// Returns the settings with which such a topic is created.
pub(crate) fn settings() -> Vec<(&'static str, String)> {
    SETTINGS.map(|(name, value, _)| (name, value.to_owned())).into()
}

/// Returns the settings of a topic because of which records may be deleted.
pub(crate) fn problems(topic: &str, value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let problem = |(name, wanted, why): (&str, &str, &str)| {
        let found = value(name).unwrap_or_default();
        let text = || format!("`{topic}` has `{name}={found}` and needs `{wanted}`: {why}");
        (found != wanted).then(text)
    };
    SETTINGS.into_iter().filter_map(problem).collect()
}

/// Warns about existing dead-letter topics that may delete their records. The owner of a topic may
/// want that, so it is not an error.
pub(crate) async fn warn_of_others(cluster: &Cluster, topics: &[Text]) {
    let mut there = vec![];
    for topic in topics.iter().filter(|topic| wire::is_dead_letter_topic(topic)) {
        if matches!(cluster.partitions(topic).await, Ok(Some(_))) {
            there.push(&**topic);
        }
    }
    if there.is_empty() {
        return;
    }
    // A user that may not read settings may still provision. The entries of a topic whose settings
    // were refused are empty.
    let Ok(described) = cluster.describe(&there).await else { return };
    let told = there.into_iter().zip(&described).filter(|(_, resource)| !resource.entries.is_empty());
    for problem in told.flat_map(|(topic, resource)| problems(topic, |name| value(resource, name))) {
        tracing::warn!("dead letters may be lost: {problem}");
    }
}

/// Returns a setting of a topic.
pub(crate) fn value(resource: &ConfigResource, name: &str) -> Option<String> {
    resource.get(name).and_then(|entry| entry.value.clone())
}
