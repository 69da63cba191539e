//! The thread that commits.

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

/// The pause after a commit that failed.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// How often the last commit of a member that leaves is tried.
const LAST_TRIES: u32 = 100;

/// The thread that tells the broker how far partitions are, where that has moved. It waits for the answers: that of a
/// commit that is not waited for is never heard. They may not come while the broker is away, and the thread that polls has
/// to hear meanwhile that its partitions were lost, before any more is done with what was taken from them.
pub(super) struct Committer {
    pub(super) consumer: Arc<BaseConsumer<Watcher>>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    /// The last one failed: that was said.
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
                    tracing::warn!(%error, "a commit to Kafka failed: it is tried again while the partitions are ours");
                }
                self.lanes.uncommitted(&marks);
            }
        }
        !self.failing
    }
}
