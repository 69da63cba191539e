//! A member of a group: joins, stays and leaves.

use super::{
    committer::Committer,
    doubts::Doubts,
    lanes::{Lanes, Settling, Taken},
    poller::{Poller, Watchdog},
    vitals::Limits,
    watcher::Watcher,
    wish,
};
use crate::{
    fault::fault,
    probe::Probe,
    record::{Read, Record},
    settings::KafkaSettings,
    trouble::Trouble,
};
use dwell_core::{BoxFuture, Clock, LeaseId, Result};
use rdkafka::{
    TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerGroupMetadata},
};
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::sync::watch;

/// How long closing waits for the last commit of the member.
const LEAVE: Duration = Duration::from_secs(10);
/// Interval of librdkafka's statistics.
const STATISTICS: Duration = Duration::from_secs(2);
/// Shortest time without a poll after which the group removes the member, and the margin beyond the
/// longest poll.
const POLL: Duration = Duration::from_secs(300);
const MARGIN: Duration = Duration::from_secs(60);
/// How long a commit may take beyond the session timeout.
const COMMIT: Duration = Duration::from_secs(10);

/// Settings of a member.
pub(crate) struct MemberSettings<'a> {
    pub(crate) connection: &'a KafkaSettings,
    pub(crate) client_id: &'a str,
    pub(crate) group: String,
    /// At most four.
    pub(crate) topics: Vec<String>,
    pub(crate) max_span: usize,
    /// Whether the member commits completed records. Otherwise the caller commits them in
    /// transactions.
    pub(crate) commits: bool,
    /// Whether a commit must succeed before records of a newly assigned partition are handed out.
    /// Only where the member commits.
    pub(crate) proves: bool,
    pub(crate) fetch: Fetch,
    pub(crate) read: Read,
    /// Random number that fences begin with: see [`Lanes::new`].
    pub(crate) epoch: u64,
    pub(crate) clock: Arc<dyn Clock>,
    /// Distinguishes a client that no longer works from a broker that is unavailable.
    pub(crate) probe: Arc<Probe>,
    /// Number of clients that were replaced.
    pub(crate) replaced: Arc<AtomicU64>,
}

/// What librdkafka prefetches from each partition.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    /// Number of prefetched records at which fetching stops.
    pub(crate) records: usize,
    /// Number of prefetched bytes at which fetching stops.
    pub(crate) bytes: usize,
    /// Limit of one fetch response in bytes, unless its first batch is larger. The prefetch may
    /// exceed its limits by this much.
    pub(crate) at_once: usize,
    /// How long the broker may hold a fetch that it has no records for. A broker gets one fetch at
    /// a time. Partitions with a full prefetch are not part of it; when they are drained, they wait
    /// until the fetch for the other partitions is answered.
    pub(crate) wait: Duration,
}

/// A member of a group. Dropping it is like a crash: nothing more is committed, and its partitions
/// are reassigned.
pub(crate) struct Member {
    lanes: Arc<Lanes>,
    consumer: Weak<BaseConsumer<Watcher>>,
    wish: Arc<AtomicU8>,
    ended: watch::Receiver<bool>,
    clock: Arc<dyn Clock>,
}

impl Member {
    /// Joins the group. Partitions are assigned later.
    pub(crate) fn join(settings: MemberSettings<'_>) -> Result<Self> {
        let MemberSettings {
            connection,
            client_id,
            group,
            topics,
            max_span,
            commits,
            proves,
            fetch,
            read,
            epoch,
            clock,
            probe,
            replaced,
        } = settings;
        let mut config = connection.client(client_id);
        let session = connection.session;
        let heartbeat = (session / 10).clamp(Duration::from_millis(100), Duration::from_secs(3));
        let properties = [
            ("group.id", group.clone()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            // If the group has no offset, because it expired or the partition is new, no record may
            // be skipped.
            ("auto.offset.reset", "earliest".to_owned()),
            ("partition.assignment.strategy", "cooperative-sticky".to_owned()),
            ("session.timeout.ms", session.as_millis().to_string()),
            ("heartbeat.interval.ms", heartbeat.as_millis().to_string()),
            ("max.poll.interval.ms", longest_poll(session, connection.revoke_wait).as_millis().to_string()),
            ("fetch.wait.max.ms", fetch.wait.as_millis().to_string()),
            ("fetch.queue.backoff.ms", "5".to_owned()),
            ("queued.min.messages", fetch.records.to_string()),
            ("queued.max.messages.kbytes", (fetch.bytes >> 10).max(1).to_string()),
            ("fetch.message.max.bytes", fetch.at_once.to_string()),
            ("allow.auto.create.topics", "false".to_owned()),
        ];
        for (name, value) in properties {
            config.set(name, value);
        }
        config.set("statistics.interval.ms", STATISTICS.as_millis().to_string());
        let what = format!("join the group `{group}`");
        let lanes = Arc::new(Lanes::new(topics.clone(), max_span, epoch, read, clock.clone()));
        let wish = Arc::new(AtomicU8::new(wish::GO_ON));
        let watcher = Watcher {
            trouble: Trouble::new(clock.clone()),
            lanes: lanes.clone(),
            wish: wish.clone(),
            commits,
            patience: connection.revoke_wait,
        };
        let consumer: BaseConsumer<Watcher> =
            connection.finish(config).create_with_context(watcher).map_err(|error| fault(&what, error))?;
        let topics: Vec<_> = topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| fault(&what, error))?;
        let (end, ended) = watch::channel(false);
        let consumer = Arc::new(consumer);
        let seen = Arc::downgrade(&consumer);
        let (of, to, until) = (consumer.clone(), lanes.clone(), wish.clone());
        let committer = Committer { consumer: of, lanes: to, wish: until, failing: false };
        let committer = commits.then(|| spawn(&group, move || committer.run())).transpose()?;
        let poller = Poller {
            consumer,
            lanes: lanes.clone(),
            wish: wish.clone(),
            committer,
            doubts: Doubts::default(),
            patience: Duration::ZERO,
            watchdog: Watchdog::new(group.clone(), limits(connection), probe, replaced),
            proves: proves && commits,
            end: end.clone(),
        };
        spawn(&group, move || {
            poller.run();
            let _ = end.send(true);
        })?;
        Ok(Self { lanes, consumer: seen, wish, ended, clock })
    }

    /// See [`Lanes::take`].
    pub(crate) fn take(&self, max: usize, ready: &mut dyn FnMut(&Record) -> bool) -> Result<Vec<Taken>> {
        self.lanes.take(max, ready)
    }

    /// See [`Lanes::settling`].
    pub(crate) fn settling(&self) -> Settling<'_> {
        self.lanes.settling()
    }

    /// See [`Lanes::is_open`].
    pub(crate) fn is_open(&self, lease: LeaseId) -> bool {
        self.lanes.is_open(lease)
    }

    /// See [`Lanes::is_stuck`].
    pub(crate) fn is_stuck(&self) -> bool {
        self.lanes.is_stuck()
    }

    /// See [`Lanes::check_commits`].
    pub(crate) fn check_commits(&self) {
        self.lanes.check_commits();
    }

    /// See [`Lanes::release`].
    pub(crate) fn release(&self, lease: LeaseId) -> bool {
        self.lanes.release(lease)
    }

    /// Returns what a transaction needs to settle these records: the group metadata and the
    /// offsets. `None` if one of them was lost. For a thread that may block.
    pub(crate) fn offsets(&self, leases: &[LeaseId]) -> Option<Offsets> {
        // In this order: if the partition is revoked in between, the metadata is outdated and the
        // broker refuses it.
        let member = self.consumer.upgrade()?.group_metadata()?;
        Some(Offsets { member, marks: self.lanes.marks_after(leases)? })
    }

    /// Returns whether the member has left, for any reason.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns the first topic that it reads.
    pub(crate) fn topic(&self) -> &str {
        self.lanes.a_topic().unwrap_or_default()
    }

    /// Returns what prevents the member from working, if anything does.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lanes.trouble()
    }

    /// Returns the number of uncommitted records in its partitions.
    pub(crate) fn lag(&self) -> u64 {
        self.lanes.lag.load(Ordering::Relaxed)
    }

    /// See [`Lanes::departures`].
    pub(crate) fn departures(&self) -> u64 {
        self.lanes.departures()
    }

    /// See [`Lanes::is_leaving`].
    pub(crate) fn is_leaving(&self, lease: LeaseId) -> bool {
        self.lanes.is_leaving(lease)
    }

    /// Completes when there may be records to take. A notification before the call counts.
    pub(crate) async fn stirred(&self) {
        tokio::select! {
            biased;
            () = self.lanes.stirred.notified() => {}
            () = self.clock.sleep(self.lanes.sweep()) => {}
        }
    }

    /// Completes when the member has left, for any reason.
    pub(crate) fn ended(&self) -> BoxFuture<'static, ()> {
        let mut ended = self.ended.clone();
        Box::pin(async move { drop(ended.wait_for(|ended| *ended).await) })
    }

    /// Commits what is settled, releases the rest, and leaves. Does not wait for an unavailable
    /// broker: librdkafka does so without a limit, on its own thread. Idempotent.
    pub(crate) fn close(&self) -> BoxFuture<'static, ()> {
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::LEAVE, Ordering::SeqCst, Ordering::SeqCst);
        self.lanes.hurry();
        let (ended, patience) = (self.ended(), self.clock.sleep(LEAVE));
        Box::pin(async move {
            tokio::select! {
                biased;
                () = ended => {}
                () = patience => tracing::warn!("Kafka consumer could not commit before it was closed; settled messages may be redelivered"),
            }
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::DROP, Ordering::SeqCst, Ordering::SeqCst);
        self.lanes.hurry();
    }
}

/// What is committed within a transaction.
pub(crate) struct Offsets {
    pub(crate) member: ConsumerGroupMetadata,
    pub(crate) marks: TopicPartitionList,
}

/// Returns the limits for joining and committing. Other members may wait for their handlers as long
/// as `revoke_wait`, and a dead member stays in the group for a session.
fn limits(connection: &KafkaSettings) -> Limits {
    let joining = connection.revoke_wait + connection.session + MARGIN / 2;
    Limits { joining, commit: connection.session + COMMIT }
}

/// Returns the longest poll: the poll that revokes a partition waits for its handlers.
fn longest_poll(session: Duration, revoke_wait: Duration) -> Duration {
    session.max(POLL).max(revoke_wait + MARGIN)
}

fn spawn(group: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("kafka {group}")).spawn(work).map_err(|error| {
        dwell_core::Error::new(
            dwell_core::ErrorKind::Unavailable,
            "the thread of a Kafka consumer could not be started",
        )
        .with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_may_take_longer_than_revoke_wait() {
        let longest = |session, wait| longest_poll(Duration::from_secs(session), Duration::from_secs(wait));
        assert_eq!(longest(30, 10), Duration::from_secs(300));
        assert_eq!(longest(600, 10), Duration::from_secs(600));
        assert_eq!(longest(30, 1_800), Duration::from_secs(1_860));
    }
}
