//! Joining a group, staying in it, and leaving it.

use super::lanes::{Lanes, Taken};
use crate::{fault::fault, record::Record, settings::KafkaSettings, trouble::Trouble};
use dwell_core::{BoxFuture, Clock, LeaseId, Result};
use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{
        BaseConsumer, CommitMode, Consumer as _, ConsumerContext, ConsumerGroupMetadata, RebalanceProtocol,
    },
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::Message as _,
    statistics::Statistics,
    types::RDKafkaRespErr,
};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::sync::watch;

/// How long one poll waits. What comes for a partition that is new ends it.
const POLL: Duration = Duration::from_millis(100);
/// So many polls that bring nothing mean that there is nothing.
const NOTHING: u32 = 16;
/// How often a partition that is taken away looks whether it was lost meanwhile.
const GLANCE: Duration = Duration::from_millis(200);
/// The pause after a commit that failed.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How often the last commit of a member that leaves is tried.
const LAST_TRIES: u32 = 100;

/// How long whoever closes a member waits for its last commit.
const LEAVE: Duration = Duration::from_secs(10);
/// How often the library says how much there is to do.
const STATISTICS: Duration = Duration::from_secs(2);
/// How long the broker may take to say what is committed.
const LEARN: Duration = Duration::from_secs(5);

/// How a member is set up.
pub(crate) struct MemberSettings<'a> {
    pub(crate) connection: &'a KafkaSettings,
    pub(crate) client_id: &'a str,
    pub(crate) group: String,
    /// Two at most.
    pub(crate) topics: Vec<String>,
    pub(crate) max_span: usize,
    /// Whether it commits what was completed by itself; else whoever completes it does, in a transaction.
    pub(crate) commits: bool,
    /// Whether [`Member::lag`] is looked after.
    pub(crate) measures_lag: bool,
    /// Records and bytes that the library may fetch ahead.
    pub(crate) prefetch: (usize, usize),
    /// A random number: see [`Lanes::new`].
    pub(crate) epoch: u64,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What the thread is to do.
mod wish {
    pub(super) const GO_ON: u8 = 0;
    /// Commit and leave.
    pub(super) const LEAVE: u8 = 1;
    /// Leave as a crash does: commit nothing.
    pub(super) const DROP: u8 = 2;
}

/// A member of a group. Dropping it is a crash: nothing more is committed, and its partitions go to others.
pub(crate) struct Member {
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
            measures_lag,
            prefetch,
            epoch,
            clock,
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
            ("max.poll.interval.ms", session.max(Duration::from_secs(300)).as_millis().to_string()),
            ("fetch.wait.max.ms", "100".to_owned()),
            ("fetch.queue.backoff.ms", "5".to_owned()),
            ("queued.min.messages", prefetch.0.to_string()),
            ("queued.max.messages.kbytes", (prefetch.1 >> 10).max(1).to_string()),
            ("allow.auto.create.topics", "false".to_owned()),
        ];
        for (name, value) in properties {
            config.set(name, value);
        }
        if measures_lag {
            config.set("statistics.interval.ms", STATISTICS.as_millis().to_string());
        }
        let what = format!("join the group `{group}`");
        let lanes = Arc::new(Lanes::new(topics.clone(), max_span, epoch, clock.clone()));
        let wish = Arc::new(AtomicU8::new(wish::GO_ON));
        let watcher = Watcher {
            trouble: Trouble::default(),
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

    /// See [`Lanes::complete`].
    pub(crate) fn complete(&self, lease: LeaseId) -> bool {
        self.lanes.complete(lease)
    }

    /// See [`Lanes::is_open`].
    pub(crate) fn is_open(&self, lease: LeaseId) -> bool {
        self.lanes.is_open(lease)
    }

    /// See [`Lanes::is_stuck`].
    pub(crate) fn is_stuck(&self) -> bool {
        self.lanes.is_stuck()
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

    /// Commits what is settled, gives back the rest, and leaves. Does not wait for a broker that is away: the library does,
    /// without a limit, on the thread that it is left to. Idempotent.
    pub(crate) fn close(&self) -> BoxFuture<'static, ()> {
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::LEAVE, Ordering::SeqCst, Ordering::SeqCst);
        self.lanes.hurry();
        let (mut ended, patience) = (self.ended.clone(), self.clock.sleep(LEAVE));
        Box::pin(async move {
            tokio::select! {
                biased;
                // It ends with its thread, whichever way.
                _ = ended.wait_for(|ended| *ended) => {}
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

fn spawn(group: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("kafka {group}")).spawn(work).map_err(|error| {
        dwell_core::Error::new(dwell_core::ErrorKind::Unavailable, "no thread for a Kafka consumer")
            .with_source(error)
    })
}

/// The thread that keeps the membership.
struct Poller {
    consumer: Arc<BaseConsumer<Watcher>>,
    lanes: Arc<Lanes>,
    wish: Arc<AtomicU8>,
    committer: Option<JoinHandle<()>>,
    doubts: Doubts,
}

/// Partitions of which the broker does not say what is committed. While it says nothing of one, the library answers for none
/// that it was asked for at the same time: each is then asked for by itself, in turn, and holds up no other.
#[derive(Default)]
struct Doubts {
    /// How many questions had no answer.
    count: usize,
    /// Those that were named in the log.
    named: BTreeSet<(String, i32)>,
}

impl Doubts {
    /// What to ask for.
    fn narrow(&self, unknown: TopicPartitionList) -> TopicPartitionList {
        if self.count == 0 {
            return unknown;
        }
        let all = unknown.elements();
        let one = &all[self.count % all.len()];
        let mut asked = TopicPartitionList::new();
        asked.add_partition(one.topic(), one.partition());
        asked
    }

    /// There was no answer.
    fn add(&mut self, asked: &TopicPartitionList, error: &KafkaError) {
        self.count += 1;
        // Of several, nobody knows which it was.
        let [one] = &asked.elements()[..] else { return };
        let (topic, partition) = (one.topic(), one.partition());
        if self.named.insert((topic.to_owned(), partition)) {
            tracing::warn!(%error, topic, partition, "Kafka does not say what is committed: it is asked until it does");
        }
    }
}

impl Poller {
    fn run(mut self) {
        while self.wish.load(Ordering::SeqCst) == wish::GO_ON {
            match self.consumer.poll(POLL) {
                Some(Ok(message)) => self.lanes.came_early(message.topic(), Record::read(&message)),
                Some(Err(error)) => self.hear(error),
                None => {}
            }
            if self.lanes.open(|topic, partition| self.split(topic, partition)) {
                self.drain();
            }
            self.learn();
        }
        // The last commit.
        if self.committer.take().is_some_and(|committer| committer.join().is_err()) {
            tracing::error!("a thread that commits to Kafka has panicked: what was done may come again");
        }
        // The queues of the partitions first: the client cannot go before them. Then it leaves the group.
        self.lanes.close();
    }

    /// Takes in what came for a partition before it had its own queue: it lies before all that comes there. Only then is
    /// anything of it handed out.
    fn drain(&self) {
        let mut nothing = 0;
        // A poll that brings nothing may have served an event.
        while nothing < NOTHING {
            match self.consumer.poll(Duration::ZERO) {
                Some(Ok(message)) => self.lanes.came_early(message.topic(), Record::read(&message)),
                Some(Err(error)) => self.hear(error),
                None => nothing += 1,
            }
        }
    }

    /// Begins with partitions that are new to us, behind what was done there. Not left to the library: while a transaction of
    /// the former owner's is open it cannot know either, and when the members of the group change in that time, it begins
    /// with the first record that there is.
    fn learn(&mut self) {
        let Some(unknown) = self.lanes.unknown() else { return self.doubts = Doubts::default() };
        let asked = self.doubts.narrow(unknown);
        let committed = self.consumer.committed_offsets(asked.clone(), LEARN).and_then(|committed| {
            committed.elements().iter().try_for_each(|element| element.error())?;
            Ok(committed)
        });
        let committed = match committed {
            Ok(committed) => committed,
            Err(error) => return self.doubts.add(&asked, &error),
        };
        if self.consumer.assignment_lost() {
            return;
        }
        let begun = match self.consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => self.consumer.incremental_assign(&committed),
            _ => Ok(()),
        };
        match begun {
            Ok(()) => self.lanes.learn(&committed),
            Err(error) => tracing::error!(%error, "the assignment of partitions could not be followed"),
        }
    }

    fn split(
        &self,
        topic: &str,
        partition: i32,
    ) -> Option<rdkafka::consumer::base_consumer::PartitionQueue<Watcher>> {
        let mut queue = self.consumer.split_partition_queue(topic, partition)?;
        let lanes = Arc::downgrade(&self.lanes);
        queue.set_nonempty_callback(move || {
            if let Some(lanes) = lanes.upgrade() {
                lanes.stirred.notify_one();
            }
        });
        Some(queue)
    }

    fn hear(&self, error: KafkaError) {
        let told = matches!(
            error.rdkafka_error_code(),
            Some(
                Code::TopicAuthorizationFailed
                    | Code::GroupAuthorizationFailed
                    | Code::UnknownTopicOrPartition
            )
        );
        tracing::warn!(%error, "a Kafka consumer reports");
        if told {
            self.lanes.refuse(fault("receive", error));
        }
    }
}

/// The thread that tells the broker how far partitions are, where that has moved. It waits for the answers: that of a
/// commit that is not waited for is never heard. They may not come while the broker is away, and the thread that polls has
/// to hear meanwhile that its partitions were lost, before any more is done with what was taken from them.
struct Committer {
    consumer: Arc<BaseConsumer<Watcher>>,
    lanes: Arc<Lanes>,
    wish: Arc<AtomicU8>,
    /// The last one failed: that was said.
    failing: bool,
}

impl Committer {
    fn run(mut self) {
        while self.wish.load(Ordering::SeqCst) == wish::GO_ON {
            self.lanes.gather();
            if self.wish.load(Ordering::SeqCst) != wish::DROP && !self.commit() {
                self.lanes.pause(TRY_AGAIN);
            }
        }
        // A group whose members are just changing takes no commits for a moment.
        let mut tries = if self.wish.load(Ordering::SeqCst) == wish::LEAVE { LAST_TRIES } else { 0 };
        while tries > 0 && !self.commit() {
            self.lanes.wait(TRY_AGAIN);
            tries -= 1;
        }
    }

    /// `false` if that failed.
    fn commit(&mut self) -> bool {
        let Some(marks) = self.lanes.marks() else { return true };
        let committed = self.consumer.commit(&marks, CommitMode::Sync);
        let was_failing = std::mem::replace(&mut self.failing, committed.is_err());
        match committed {
            Ok(()) => self.lanes.committed(),
            Err(error) => {
                if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) {
                    self.lanes.be_terse();
                }
                if !was_failing {
                    tracing::warn!(%error, "a commit to Kafka failed: it is tried again while the partitions are ours");
                }
                self.lanes.uncommitted(&marks);
            }
        }
        !self.failing
    }
}

/// Hears of partitions that come and go, on the thread that polls.
pub(super) struct Watcher {
    trouble: Trouble,
    lanes: Arc<Lanes>,
    wish: Arc<AtomicU8>,
    commits: bool,
    /// How long a partition that is taken away waits for its handlers.
    patience: Duration,
}

impl ClientContext for Watcher {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        self.trouble.log(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.trouble.error(error, reason);
    }

    fn stats(&self, said: Statistics) {
        self.lanes.measure(&said);
    }
}

impl ConsumerContext for Watcher {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let done = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                if self.wish.load(Ordering::SeqCst) == wish::GO_ON {
                    self.lanes.assigned(partitions);
                }
                if cooperative {
                    // They begin when it is known where: see `Poller::learn`.
                    consumer.incremental_assign(&TopicPartitionList::new())
                } else {
                    consumer.assign(partitions)
                }
            }
            _ => {
                if consumer.assignment_lost() {
                    tracing::warn!(
                        ?partitions,
                        "partitions were lost: what was being handled comes again elsewhere"
                    );
                } else if self.wish.load(Ordering::SeqCst) == wish::GO_ON {
                    self.let_go(consumer, partitions);
                }
                self.lanes.gone(partitions);
                if cooperative {
                    consumer.incremental_unassign(&begun(consumer, partitions))
                } else {
                    consumer.unassign()
                }
            }
        };
        if let Err(error) = done {
            tracing::error!(%error, "the assignment of partitions could not be followed");
        }
    }
}

/// Those of these that have begun: the library knows of no others.
fn begun(consumer: &BaseConsumer<Watcher>, partitions: &TopicPartitionList) -> TopicPartitionList {
    let Ok(all) = consumer.assignment() else { return partitions.clone() };
    let mut begun = TopicPartitionList::new();
    for element in partitions.elements() {
        if all.find_partition(element.topic(), element.partition()).is_some() {
            begun.add_partition(element.topic(), element.partition());
        }
    }
    begun
}

impl Watcher {
    /// Finish, and let it be committed: whoever gets them next begins behind what was handled here. What others work on is
    /// committed meanwhile, as ever.
    fn let_go(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        self.lanes.leave(partitions);
        let clock = self.lanes.clock();
        let start = clock.elapsed();
        let is_over = || consumer.assignment_lost() || clock.elapsed().saturating_sub(start) >= self.patience;
        while !self.lanes.wait_for(partitions, self.commits, GLANCE.min(self.patience)) && !is_over() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_question_without_an_answer_each_partition_is_asked_for_by_itself_and_in_turn() {
        let mut unknown = TopicPartitionList::new();
        unknown.add_partition_range("t", 0, 2);
        let mut doubts = Doubts::default();
        let mut ask = || {
            let asked = doubts.narrow(unknown.clone());
            doubts.add(&asked, &KafkaError::OffsetFetch(Code::OperationTimedOut));
            asked.elements().iter().map(|element| element.partition()).collect::<Vec<_>>()
        };
        assert_eq!(ask(), [0, 1, 2]);
        let mut turns = [ask(), ask(), ask()];
        turns.sort();
        assert_eq!(turns, [[0], [1], [2]]);
    }
}
