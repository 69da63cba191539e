//! The thread that polls librdkafka and thereby keeps the membership, whatever handlers do.

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
    probe::{Probe, RECOVERY},
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

/// Timeout of one poll. A record of a newly assigned partition ends it.
const POLL: Duration = Duration::from_millis(100);
/// Number of consecutive empty polls that mean that no record is queued.
const NOTHING: u32 = 16;
/// Longest wait for a broker that may be available again. Between two such waits the thread learns
/// whether partitions were lost.
const LOOK: Duration = Duration::from_millis(500);

/// Interval at which the probe checks for a broker while the client does not work.
const PROBE: Duration = Duration::from_secs(2);
/// How long the client that was replaced may take to end cleanly.
const LAST: Duration = Duration::from_secs(60);

/// Detects a client that does not work although a broker answers.
pub(super) struct Watchdog {
    group: String,
    limits: Limits,
    probe: Arc<Probe>,
    replaced: Arc<AtomicU64>,
    /// When the probe last checked for a broker.
    looked: Option<Duration>,
    /// Since when a broker answers.
    answered: Option<Duration>,
}

impl Watchdog {
    pub(super) fn new(group: String, limits: Limits, probe: Arc<Probe>, replaced: Arc<AtomicU64>) -> Self {
        Self { group, limits, probe, replaced, looked: None, answered: None }
    }

    /// Returns whether to replace the client. A client that stalls where another one did is not
    /// replaced, because that would not help.
    fn is_lost(&mut self, lanes: &Lanes) -> bool {
        let Some(complaint) = lanes.complaint(self.limits) else {
            (self.looked, self.answered) = (None, None);
            if lanes.is_inside() {
                self.probe.works(&self.group);
            }
            return false;
        };
        let now = lanes.clock().elapsed();
        if self.looked.is_some_and(|looked| now.saturating_sub(looked) < PROBE) {
            return false;
        }
        self.looked = Some(now);
        if !self.probe.answers() {
            self.answered = None;
            return false;
        }
        let answered = *self.answered.get_or_insert(now);
        if now.saturating_sub(answered) < RECOVERY {
            return false;
        }
        self.would_help(&complaint, lanes)
    }

    /// Returns whether another client may work where this one does not.
    fn would_help(&self, complaint: &Complaint, lanes: &Lanes) -> bool {
        match complaint {
            Complaint::Outside(_) => self.probe.may_replace(&self.group),
            Complaint::Stalled(partitions) => {
                // The filter must see all partitions, so that each of them is remembered.
                let is_new = |(key, offset): &(Key, i64)| {
                    let partition = format!("{}/{}/{}", self.group, lanes.topic(*key), key.1);
                    self.probe.is_new_stall(partition, *offset)
                };
                partitions.iter().filter(|stalled| is_new(stalled)).count() > 0
            }
        }
    }
}

/// The polling thread.
pub(super) struct Poller {
    pub(super) consumer: Arc<BaseConsumer<Watcher>>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    pub(super) committer: Option<JoinHandle<()>>,
    pub(super) doubts: Doubts,
    /// How long it last waited for a broker that may be available again.
    pub(super) patience: Duration,
    pub(super) watchdog: Watchdog,
    /// See [`super::MemberSettings::proves`].
    pub(super) proves: bool,
    /// Set when the member has left the group.
    pub(super) end: watch::Sender<bool>,
}

impl Poller {
    pub(super) fn run(mut self) {
        // Without the committing thread, all settled records would be redelivered: end, so that the
        // caller opens another consumer.
        let is_committed = |committer: &JoinHandle<()>| !committer.is_finished();
        while self.wish.load(Ordering::SeqCst) == wish::GO_ON
            && self.committer.as_ref().is_none_or(is_committed)
        {
            self.turn();
            if self.watchdog.is_lost(&self.lanes) {
                return self.abandon();
            }
        }
        // The committing thread makes the last commit.
        if self.committer.take().is_some_and(|committer| committer.join().is_err()) {
            tracing::error!(
                "committing thread of a Kafka consumer panicked; settled records may be redelivered"
            );
        }
    }

    /// Ends without waiting for the client, whose last commit may never return.
    fn abandon(mut self) {
        let (topic, why) = (self.lanes.a_topic(), self.lanes.trouble().unwrap_or_default());
        tracing::error!(topic, why, "Kafka client does not recover; replacing it");
        self.watchdog.replaced.fetch_add(1, Ordering::SeqCst);
        let _ = self.wish.compare_exchange(wish::GO_ON, wish::DROP, Ordering::SeqCst, Ordering::SeqCst);
        let _ = self.end.send(true);
        let text = format!("a Kafka client did not recover and was closed ({why}): open another consumer");
        self.lanes.refuse(Error::new(ErrorKind::Unavailable, text));
        self.lanes.hurry();
        self.lanes.close();
        // If the client recovers after all, it must not take partitions from its successor.
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
            // No other request can be answered.
            self.look_for_a_broker();
        } else {
            while self.learn() {}
        }
    }

    /// Takes in records of a partition that arrived before it had its own queue. They precede all
    /// records in the queue, so no record is handed out before.
    fn drain(&self) {
        let mut nothing = 0;
        // A poll that returns nothing may have handled an event.
        while nothing < NOTHING {
            match self.consumer.poll(Duration::ZERO) {
                Some(Ok(message)) => self.lanes.came_early(message.topic(), self.lanes.read(&message)),
                Some(Err(error)) => self.hear(error),
                None => nothing += 1,
            }
        }
    }

    /// Begins to read newly assigned partitions after the records that are settled there. The
    /// offsets are not left to librdkafka: while the former owner has an open transaction they are
    /// unknown, and if the group rebalances in that time, librdkafka begins with the first record.
    ///
    /// Returns whether reading of some partitions has begun, so that others may remain. While this
    /// waits for the broker, no event is handled, and a rebalance that is not handled halts all
    /// partitions. That is why each wait is short.
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
        // Check last: after an assignment, librdkafka forgets that partitions were lost.
        if self.consumer.assignment_lost() {
            return false;
        }
        let begun = if cooperative { self.consumer.incremental_assign(&committed) } else { Ok(()) };
        match begun {
            Ok(()) => self.lanes.learn(&committed, self.proves),
            Err(error) => {
                tracing::error!(%error, "assignment of partitions failed");
                return false;
            }
        }
        true
    }

    /// Checks whether a broker answers. If the response comes too late, librdkafka knows that the
    /// partitions are lost, and they are not continued. A loss that it learns of a moment later is
    /// handled with the next poll. Until then, at most a tenth of a second, records may be handed
    /// out that another member also handles.
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
        // The client has reported all other errors in more detail.
        if (told || is_alone) && self.consumer.context().trouble.is_news(&error.to_string()) {
            tracing::warn!(%error, topic, "Kafka consumer reports an error");
        } else {
            tracing::debug!(%error, topic, "Kafka consumer reports an error");
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
            // The thread panicked or could not be started. The caller must get an error, and the
            // committing thread must end.
            let text = "the thread of a Kafka consumer ended unexpectedly: open another consumer";
            self.lanes.refuse(Error::new(ErrorKind::Unavailable, text));
            self.lanes.hurry();
        }
        // Drops the queues of the partitions first, because the client cannot be dropped before
        // them. Dropping the client leaves the group.
        self.lanes.close();
    }
}

#[cfg(test)]
mod tests;
