//! The thread that commits offsets.

use super::{lanes::Lanes, watcher::Watcher, wish};
use rdkafka::{
    consumer::{BaseConsumer, CommitMode, Consumer as _},
    error::RDKafkaErrorCode as Code,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

/// Pause after a failed commit.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Number of attempts at the last commit of a member that leaves.
const LAST_TRIES: u32 = 100;

/// Commits the marks of partitions that have moved. Commits are synchronous, because the failure of
/// an asynchronous one would go unnoticed. They run on a thread of their own, because they block
/// while the broker is unavailable. In the meantime the polling thread must learn whether its
/// partitions were lost, before more of their records are handled.
pub(super) struct Committer {
    pub(super) consumer: Arc<BaseConsumer<Watcher>>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    /// Whether the last commit failed, which was logged.
    pub(super) failing: bool,
}

impl Committer {
    pub(super) fn run(mut self) {
        while self.wish.load(Ordering::SeqCst) == wish::GO_ON {
            self.lanes.gather();
            if self.wish.load(Ordering::SeqCst) != wish::DROP && !self.commit() {
                self.lanes.pause(TRY_AGAIN);
            }
        }
        // A group that is rebalancing refuses commits for a moment.
        let mut tries = if self.wish.load(Ordering::SeqCst) == wish::LEAVE { LAST_TRIES } else { 0 };
        while tries > 0 && !self.commit() {
            self.lanes.wait(TRY_AGAIN);
            tries -= 1;
        }
    }

    /// Commits what has changed. Returns `false` if that failed.
    fn commit(&mut self) -> bool {
        let Some(marks) = self.lanes.marks() else { return true };
        let committed = self.consumer.commit(&marks, CommitMode::Sync);
        let was_failing = std::mem::replace(&mut self.failing, committed.is_err());
        match committed {
            Ok(()) => {
                self.lanes.committed();
                for mark in marks.elements() {
                    let (topic, partition, offset) = (mark.topic(), mark.partition(), mark.offset().to_raw());
                    tracing::debug!(topic, partition, offset, "committed");
                }
            }
            Err(error) => {
                if error.rdkafka_error_code() == Some(Code::OffsetMetadataTooLarge) {
                    self.lanes.be_terse();
                }
                if !was_failing {
                    tracing::warn!(%error, "commit to Kafka failed; retrying while the partitions are assigned");
                }
                self.lanes.uncommitted(&marks);
            }
        }
        !self.failing
    }
}
