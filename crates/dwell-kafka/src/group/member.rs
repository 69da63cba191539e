//! Joining a group, staying in it, and leaving it.

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
    probe::{GivenUp, Probe},
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

/// How long whoever closes a member waits for its last commit.
const LEAVE: Duration = Duration::from_secs(10);
/// How often the library says how much there is to do.
const STATISTICS: Duration = Duration::from_secs(2);
/// How long nobody may poll before the group gives up on us, at least; also beyond what a poll may take.
const POLL: Duration = Duration::from_secs(300);
const MARGIN: Duration = Duration::from_secs(60);
/// How long a commit may take beyond a session.
const COMMIT: Duration = Duration::from_secs(10);
/// How long a cluster may take to fence a broker that has crashed: 9 s by default, and 18 s with ZooKeeper.
const FENCING: Duration = Duration::from_secs(18);

/// How a member is set up.
pub(crate) struct MemberSettings<'a> {
    pub(crate) connection: &'a KafkaSettings,
    pub(crate) client_id: &'a str,
    pub(crate) group: String,
    /// Four at most.
    pub(crate) topics: Vec<String>,
    pub(crate) max_span: usize,
    /// Whether it commits what was completed by itself; else whoever completes it does, in a transaction.
    pub(crate) commits: bool,
    /// Whether a commit has to come through before anything of a new partition is handed out. Only where it commits by itself.
    pub(crate) proves: bool,
    pub(crate) fetch: Fetch,
    pub(crate) read: Read,
    /// A random number: see [`Lanes::new`].
    pub(crate) epoch: u64,
    pub(crate) clock: Arc<dyn Clock>,
    /// Tells a client that no longer works from a broker that is unavailable.
    pub(crate) probe: Arc<Probe>,
    /// How many clients were replaced.
    pub(crate) replaced: Arc<AtomicU64>,
}

/// What the library fetches of each partition before anybody takes it.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    /// No more are asked for while there are so many,
    pub(crate) records: usize,
    /// or so many bytes.
    pub(crate) bytes: usize,
    /// The most bytes of one answer, unless the first batch is larger: what there may be beyond the limits.
    pub(crate) at_once: usize,
    /// How long the broker may keep a question that it has no answer to. There is one at a time: a partition that has enough
    /// is no part of it, and when that is used up, it waits for those that are empty.
    pub(crate) wait: Duration,
}

/// A member of a group. Dropping it is a crash: nothing more is committed, and its partitions go to others.
pub(crate) struct Member {
    group: String,
    lanes: Arc<Lanes>,
    consumer: Weak<BaseConsumer<Watcher>>,
    wish: Arc<AtomicU8>,
    ended: watch::Receiver<bool>,
    clock: Arc<dyn Clock>,
}

impl Member {
    /// Joins. The partitions come later, by themselves.
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
            // Where a group has no offset, since it expired or a partition is new, nothing may be skipped.
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
        if let Some(GivenUp { why, .. }) = probe.given_up().remove(&group) {
            lanes.inherit(why);
        }
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
        Ok(Self { group, lanes, consumer: seen, wish, ended, clock })
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

    /// What a transaction needs to complete these: who we are in the group, and its marks. `None` if one of them is not ours
    /// any more. For a thread that may wait.
    pub(crate) fn offsets(&self, leases: &[LeaseId]) -> Option<Offsets> {
        // In this order: should the partition go in between, the broker knows that we are somebody of the past.
        let member = self.consumer.upgrade()?.group_metadata()?;
        Some(Offsets { member, marks: self.lanes.marks_after(leases)? })
    }

    /// Whether it has left, whichever way.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// The first topic that it reads.
    pub(crate) fn topic(&self) -> &str {
        self.lanes.a_topic().unwrap_or_default()
    }

    /// Its group.
    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    /// What keeps it from its work, if anything does.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.lanes.trouble()
    }

    /// What lies in its partitions and is not committed.
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

    /// Completes when there may be something to take. What stirred before the call counts.
    pub(crate) async fn stirred(&self) {
        tokio::select! {
            biased;
            () = self.lanes.stirred.notified() => {}
            () = self.clock.sleep(self.lanes.sweep()) => {}
        }
    }

    /// Completes when it has left, whichever way.
    pub(crate) fn ended(&self) -> BoxFuture<'static, ()> {
        let mut ended = self.ended.clone();
        Box::pin(async move { drop(ended.wait_for(|ended| *ended).await) })
    }

    /// Commits what is settled, gives back the rest, and leaves. Does not wait for a broker that is away: the library does,
    /// without a limit, on the thread that it is left to. Idempotent.
    pub(crate) fn close(&self) -> BoxFuture<'static, ()> {
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::LEAVE, Ordering::SeqCst, Ordering::SeqCst);
        self.lanes.hurry();
        let (ended, patience) = (self.ended(), self.clock.sleep(LEAVE));
        Box::pin(async move {
            tokio::select! {
                biased;
                () = ended => {}
                () = patience => tracing::warn!("a Kafka consumer could not commit in time: what it did may come again"),
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

/// The others may take as long as a partition waits for its handlers, and one that has died is a member for a session.
fn limits(connection: &KafkaSettings) -> Limits {
    let joining = connection.revoke_wait + connection.session + MARGIN / 2;
    Limits { joining, commit: connection.session + COMMIT, coordinator: connection.session + FENCING }
}

/// The poll that takes a partition away waits for its handlers.
fn longest_poll(session: Duration, revoke_wait: Duration) -> Duration {
    session.max(POLL).max(revoke_wait + MARGIN)
}

fn spawn(group: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("kafka {group}")).spawn(work).map_err(|error| {
        dwell_core::Error::new(dwell_core::ErrorKind::Unavailable, "no thread for a Kafka consumer")
            .with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_may_take_as_long_as_a_partition_waits_for_its_handlers() {
        let longest = |session, wait| longest_poll(Duration::from_secs(session), Duration::from_secs(wait));
        assert_eq!(longest(30, 10), Duration::from_secs(300));
        assert_eq!(longest(600, 10), Duration::from_secs(600));
        assert_eq!(longest(30, 1_800), Duration::from_secs(1_860));
    }
}
