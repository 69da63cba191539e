//! The thread that keeps the membership: it polls the library, whatever handlers do.

use super::{
    doubts::Doubts,
    lane::Key,
    lanes::Lanes,
    vitals::{Complaint, Limits},
    watcher::Watcher,
    wish,
};
use crate::{
    fault::fault,
    probe::{GivenUp, Probe, RECOVERY, names_brokers},
};
use dwell_core::{Error, ErrorKind};
use rdkafka::{
    consumer::{BaseConsumer, Consumer as _, RebalanceProtocol, base_consumer::PartitionQueue},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::Message as _,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::watch;

/// How long one poll waits. What comes for a partition that is new ends it.
const POLL: Duration = Duration::from_millis(100);
/// So many polls that bring nothing mean that there is nothing.
const NOTHING: u32 = 16;
/// How long a broker that may be there is waited for at most: that partitions were lost is heard between two such looks.
const LOOK: Duration = Duration::from_millis(500);

/// How often it is looked whether a broker answers, while the client does not work.
const PROBE: Duration = Duration::from_secs(2);
/// How long the client that was replaced is given to end in good order.
const LAST: Duration = Duration::from_secs(60);

/// Notices a client that no longer works although a broker answers.
pub(super) struct Watchdog {
    group: String,
    limits: Limits,
    probe: Arc<Probe>,
    replaced: Arc<AtomicU64>,
    /// When it looked last.
    looked: Option<Duration>,
    /// Since when a broker answers.
    answered: Option<Duration>,
}

impl Watchdog {
    pub(super) fn new(group: String, limits: Limits, probe: Arc<Probe>, replaced: Arc<AtomicU64>) -> Self {
        Self { group, limits, probe, replaced, looked: None, answered: None }
    }

    /// Whether to open another client. One that stalls where another one did is not helped by that. `knows_brokers` asks the
    /// client itself.
    fn is_lost(&mut self, lanes: &Lanes, knows_brokers: impl FnOnce() -> bool) -> bool {
        let Some(complaint) = lanes.complaint(self.limits) else {
            (self.looked, self.answered) = (None, None);
            if lanes.is_inside() {
                self.probe.works(&self.group);
            }
            if lanes.trouble().is_none() && lanes.is_inside() {
                self.probe.recovered(&self.group);
            }
            return false;
        };
        let now = lanes.clock().elapsed();
        if self.looked.is_some_and(|looked| now.saturating_sub(looked) < PROBE) {
            return false;
        }
        self.looked = Some(now);
        let may_recover = matches!(complaint, Complaint::NoCoordinator { is_over: false, .. });
        if !self.probe.answers() || may_recover && knows_brokers() {
            self.answered = None;
            return false;
        }
        let answered = *self.answered.get_or_insert(now);
        if now.saturating_sub(answered) < RECOVERY {
            return false;
        }
        self.would_help(&complaint, lanes)
    }

    /// Whether another client may work where this one does not.
    fn would_help(&self, complaint: &Complaint, lanes: &Lanes) -> bool {
        match complaint {
            Complaint::Outside(_) | Complaint::NoCoordinator { .. } => self.probe.may_replace(&self.group),
            Complaint::Stalled(partitions) => {
                // All of them are remembered, also behind one that is new.
                let is_new = |(key, offset): &(Key, i64)| {
                    let partition = format!("{}/{}/{}", self.group, lanes.topic(*key), key.1);
                    self.probe.is_new_stall(partition, *offset)
                };
                partitions.iter().filter(|stalled| is_new(stalled)).count() > 0
            }
        }
    }
}

/// The thread that keeps the membership.
pub(super) struct Poller {
    pub(super) consumer: Arc<BaseConsumer<Watcher>>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    pub(super) committer: Option<JoinHandle<()>>,
    pub(super) doubts: Doubts,
    /// How long a broker that may be there was last waited for.
    pub(super) patience: Duration,
    pub(super) watchdog: Watchdog,
    /// See [`super::MemberSettings::proves`].
    pub(super) proves: bool,
    /// Told when it has left.
    pub(super) end: watch::Sender<bool>,
}

impl Poller {
    pub(super) fn run(mut self) {
        // Without whoever commits, all that is done would come again: whoever receives opens another one.
        let is_committed = |committer: &JoinHandle<()>| !committer.is_finished();
        while self.wish.load(Ordering::SeqCst) == wish::GO_ON
            && self.committer.as_ref().is_none_or(is_committed)
        {
            self.turn();
            let knows_brokers = || names_brokers(self.consumer.client());
            if self.watchdog.is_lost(&self.lanes, knows_brokers) {
                return self.abandon();
            }
        }
        // The last commit.
        if self.committer.take().is_some_and(|committer| committer.join().is_err()) {
            tracing::error!("a thread that commits to Kafka has panicked: what was done may come again");
        }
    }

    /// Nothing more comes of this client. The library may never return from its last commit: nobody waits for that.
    fn abandon(mut self) {
        let (topic, why) = (self.lanes.a_topic(), self.lanes.trouble().unwrap_or_default());
        tracing::error!(topic, why, "Kafka client does not recover; replacing it");
        let given_up = GivenUp { topic: topic.unwrap_or_default().to_owned(), why: why.clone() };
        self.watchdog.probe.gives_up(&self.watchdog.group, given_up);
        self.watchdog.replaced.fetch_add(1, Ordering::SeqCst);
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::DROP, Ordering::SeqCst, Ordering::SeqCst);
        let _ = self.end.send(true);
        let text = format!("the Kafka client did not recover ({why}): open another consumer");
        self.lanes.refuse(Error::new(ErrorKind::Unavailable, text));
        self.lanes.hurry();
        self.lanes.close();
        // Should it recover after all, it must not take partitions from its successor.
        self.consumer.unsubscribe();
        let committer = self.committer.take();
        let clock = self.lanes.clock();
        let start = clock.elapsed();
        while committer.as_ref().is_some_and(|committer| !committer.is_finished())
            && clock.elapsed().saturating_sub(start) < LAST
        {
            let _ = self.consumer.poll(POLL);
        }
    }

    fn turn(&mut self) {
        match self.consumer.poll(POLL) {
            Some(Ok(message)) => self.lanes.came_early(message.topic(), self.lanes.read(&message)),
            Some(Err(error)) => self.hear(error),
            None => {}
        }
        self.lanes.note_silence();
        if self.lanes.open(|topic, partition| self.split(topic, partition)) {
            self.drain();
        }
        if self.lanes.is_deserted() {
            // Nobody is there to be asked for anything else.
            self.look_for_a_broker();
        } else {
            while self.learn() {}
        }
    }

    /// Takes in what came for a partition before it had its own queue: it lies before all that comes there. Only then is
    /// anything of it handed out.
    fn drain(&self) {
        let mut nothing = 0;
        // A poll that brings nothing may have served an event.
        while nothing < NOTHING {
            match self.consumer.poll(Duration::ZERO) {
                Some(Ok(message)) => self.lanes.came_early(message.topic(), self.lanes.read(&message)),
                Some(Err(error)) => self.hear(error),
                None => nothing += 1,
            }
        }
    }

    /// Begins with partitions that are new to us, behind what was done there. Not left to the library: while a transaction of
    /// the former owner's is open it cannot know either, and when the members of the group change in that time, it begins
    /// with the first record that there is.
    ///
    /// Whether it has begun with some, so that there may be others to ask for. While the broker is waited for, nothing is
    /// heard, and a change of the members that is not heard halts all partitions: hence a little at a time.
    fn learn(&mut self) -> bool {
        let Some(unknown) = self.lanes.unknown() else {
            self.doubts = Doubts::default();
            return false;
        };
        let asked = self.doubts.narrow(unknown);
        let committed =
            self.consumer.committed_offsets(asked.clone(), self.doubts.patience()).and_then(|committed| {
                committed.elements().iter().try_for_each(|element| element.error())?;
                Ok(committed)
            });
        let committed = match committed {
            Ok(committed) => committed,
            Err(error) => {
                self.doubts.add(&asked, &error);
                return false;
            }
        };
        let cooperative = matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        // The last thing before it: with an assignment, the library forgets that one was lost.
        if self.consumer.assignment_lost() {
            return false;
        }
        let begun = if cooperative { self.consumer.incremental_assign(&committed) } else { Ok(()) };
        match begun {
            Ok(()) => self.lanes.learn(&committed, self.proves),
            Err(error) => {
                tracing::error!(%error, "the assignment of partitions could not be followed");
                return false;
            }
        }
        true
    }

    /// Asks whatever broker there is for something that it has to answer itself. An answer may come too late: partitions that
    /// the library knows to be lost are not gone on with. What it learns a moment later is heard with the next poll, and until
    /// then, a tenth of a second at most, records may be handed out that come again elsewhere.
    fn look_for_a_broker(&mut self) {
        self.patience = (self.patience * 2).clamp(POLL, LOOK);
        let answer = self.consumer.fetch_metadata(self.lanes.a_topic(), self.patience);
        if answer.is_ok() && !self.consumer.assignment_lost() {
            self.patience = Duration::ZERO;
            self.lanes.desert(false);
        }
    }

    fn split(&self, topic: &str, partition: i32) -> Option<PartitionQueue<Watcher>> {
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
        let is_alone = error.rdkafka_error_code() == Some(Code::AllBrokersDown);
        let topic = self.lanes.a_topic();
        // Of all others, the client has said more already.
        if (told || is_alone) && self.consumer.context().trouble.is_news(&error.to_string()) {
            tracing::warn!(%error, topic, "a Kafka consumer reports");
        } else {
            tracing::debug!(%error, topic, "a Kafka consumer reports");
        }
        if is_alone {
            self.lanes.desert(true);
        }
        if told {
            self.lanes.refuse(fault("receive", error));
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let wish = self.wish.compare_exchange(wish::GO_ON, wish::DROP, Ordering::SeqCst, Ordering::SeqCst);
        if wish.is_ok() {
            // Nobody wanted that: it has panicked, or there was no thread for it. Whoever receives must hear of it, and whoever
            // commits must end.
            let text = "the thread of a Kafka consumer has ended: open another one";
            self.lanes.refuse(Error::new(ErrorKind::Unavailable, text));
            self.lanes.hurry();
        }
        // The queues of the partitions first: the client cannot go before them. Then it leaves the group.
        self.lanes.close();
    }
}

#[cfg(test)]
mod tests;
