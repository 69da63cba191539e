//! Periodic checks of the delay topics while a relay runs: levels that were deleted, and records
//! outside the ladder.
//!
//! A ladder may change between two starts, and relays with the former ladder may still run while
//! relays with the new one start. Records in a level that only the former ladder has would then
//! never be read. That is why every delay topic of the prefix with uncommitted records is read,
//! whether it is in the ladder or not.

use super::topics::{self, Level, outside_ladder};
use crate::cluster::Cluster;
use dwell_core::{Clock, Error, ErrorKind, Result, Text};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(10);

/// First and end offset of each partition.
type Ends = Vec<(i64, i64)>;

pub(super) struct Upkeep {
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    /// The topics of the ladder.
    ladder: Vec<Text>,
    /// Levels outside the ladder that have a worker.
    extra: BTreeSet<Text>,
    /// Levels outside the ladder that had no uncommitted records, and where they ended.
    empty: BTreeMap<Text, Ends>,
    /// Levels outside the ladder that could not be checked.
    failing: BTreeSet<Text>,
    /// The first check does not wait for the interval.
    has_checked: bool,
}

impl Upkeep {
    pub(super) fn new(cluster: Cluster, levels: &[Level]) -> Self {
        let (clock, ladder) = (cluster.clock(), levels.iter().map(|level| level.topic.clone()).collect());
        let (extra, empty, failing) = Default::default();
        Self { cluster, clock, ladder, extra, empty, failing, has_checked: false }
    }

    /// Waits until it is time for the next check. Returns the levels outside the ladder that need a
    /// worker from now on, and an error if a level of the ladder was deleted: it exists again, and
    /// the relay has to restart.
    pub(super) async fn next(&mut self) -> Result<Vec<Level>> {
        if self.has_checked {
            self.clock.sleep(INTERVAL).await;
        }
        self.has_checked = true;
        // A user that may not list topics, or a broker that does not answer, is no reason to stop.
        let Ok(names) = self.cluster.topics().await else { return Ok(vec![]) };
        self.recreate_deleted(&names).await?;
        let mut found = vec![];
        for level in outside_ladder(&self.cluster.settings().relay, &names) {
            if !self.extra.contains(&level.topic) && self.has_records(&level.topic).await {
                self.extra.insert(level.topic.clone());
                found.push(level);
            }
        }
        Ok(found)
    }

    async fn recreate_deleted(&self, names: &[String]) -> Result<()> {
        for topic in self.ladder.iter().filter(|topic| !names.iter().any(|name| **name == ***topic)) {
            // The list may lack a topic for other reasons: only an answer about this one counts.
            self.cluster.forget(topic);
            if let Ok(None) = self.cluster.partitions(topic).await {
                topics::check(&self.cluster).await?;
                let text =
                    format!("the delay topic `{topic}` was deleted; it was recreated, without its records");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
        }
        Ok(())
    }

    /// Whether a level has records that its group has not committed. Warns if so.
    async fn has_records(&mut self, topic: &Text) -> bool {
        match self.uncommitted(topic).await {
            Ok(0) => false,
            Ok(count) => {
                tracing::warn!(
                    topic = &**topic,
                    count,
                    "a delay topic that is not in the ladder still has records; relaying them"
                );
                true
            }
            Err(error) if !self.failing.insert(topic.clone()) => {
                tracing::debug!(%error, topic = &**topic, "a delay topic that is not in the ladder cannot be read; retrying");
                false
            }
            Err(error) => {
                tracing::warn!(%error, topic = &**topic, "a delay topic that is not in the ladder cannot be read; retrying");
                false
            }
        }
    }

    /// Returns the number of offsets that the group of a level has not committed.
    async fn uncommitted(&mut self, topic: &Text) -> Result<u64> {
        let Some(partitions) = self.cluster.partitions(topic).await? else { return Ok(0) };
        let ends = self.cluster.ends(topic, partitions).await?;
        if ends.iter().all(|(first, end)| first == end) || self.empty.get(topic) == Some(&ends) {
            return Ok(0);
        }
        let group = self.cluster.settings().relay.group_of(topic);
        let committed = self.cluster.committed(&group, topic, partitions).await?;
        let left = ends.iter().zip(committed).map(|((first, end), mark)| {
            let mark = mark.map_or(*first, |mark| mark.offset.max(*first));
            u64::try_from(end - mark).unwrap_or(0)
        });
        let count = left.sum();
        if count == 0 {
            self.empty.insert(topic.clone(), ends);
        }
        Ok(count)
    }
}
