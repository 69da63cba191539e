//! Periodic checks of the delay topics while a relay runs: levels that were deleted, and records
//! outside the ladder.
//!
//! A ladder may change between two starts, and relays with the former ladder may still run while
//! those with the new one start. Records in a level that only the former ladder has would then
//! never be read. Hence every delay topic of the prefix that has uncommitted records is read,
//! whether it is in the ladder or not.
//!
//! The brokers drop the offsets of a group without members after a week, unless they are set
//! otherwise, and a level may keep its records for longer. Where nothing is committed, a record
//! that is younger than that was never forwarded: it is relayed. An older one may have been. It
//! stays where it is, and the log says how to forward it.

use super::topics::{self, Level, outside_ladder};
use crate::cluster::{Cluster, Mark};
use dwell_core::{Clock, Error, ErrorKind, Result, Text, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(10);

/// How long the brokers keep the offsets of a group without members, if they do not tell: the
/// default of Kafka.
const OFFSETS_KEPT: Duration = Duration::from_secs(7 * 24 * 3_600);

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

    /// The worker of this level has ended. Another one starts when there are records again.
    pub(super) fn ended(&mut self, topic: &Text) {
        self.extra.remove(topic);
        self.cluster.forget(topic);
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
        let starts = self.starts(topic, &group, &ends, committed).await?;
        let left = ends.iter().zip(starts).map(|((_, end), start)| u64::try_from(end - start).unwrap_or(0));
        let count = left.sum();
        if count == 0 {
            self.empty.insert(topic.clone(), ends);
        }
        Ok(count)
    }

    /// Returns where the group of a level begins in each partition. Commits that where nothing is
    /// committed and some records may have been forwarded before.
    async fn starts(
        &self,
        topic: &Text,
        group: &str,
        ends: &Ends,
        committed: Vec<Option<Mark>>,
    ) -> Result<Vec<i64>> {
        let is_unknown = |(mark, (first, end)): (&Option<Mark>, &(i64, i64))| mark.is_none() && first < end;
        let mut young = vec![None; ends.len()];
        if committed.iter().zip(ends).any(is_unknown) {
            let kept = self.cluster.offset_retention().await.unwrap_or(OFFSETS_KEPT);
            let since = self.clock.now().0.saturating_sub_unsigned(kept.as_millis() as u64);
            young = self.cluster.offsets_since(topic, ends.len(), Timestamp(since)).await?;
        }
        let (mut starts, mut old) = (vec![], 0);
        for ((mark, (first, end)), young) in committed.iter().zip(ends).zip(young) {
            let start = mark.as_ref().map_or(young.unwrap_or(*end), |mark| mark.offset).max(*first);
            old += if mark.is_none() { start - first } else { 0 };
            starts.push(start);
        }
        if old > 0 {
            let marks = starts.iter().map(|start| Mark::at(*start)).collect();
            self.cluster.begin(group, vec![(topic.clone(), marks)]).await?;
            tracing::error!(
                topic = &**topic,
                group,
                count = old,
                "a delay topic that is not in the ladder has records that may have been forwarded before the offsets of its \
                 group expired; leaving them. To forward them, stop all relays, run `kafka-consumer-groups --reset-offsets \
                 --to-earliest --execute` with this --group and --topic, and start the relays again"
            );
        }
        Ok(starts)
    }
}
