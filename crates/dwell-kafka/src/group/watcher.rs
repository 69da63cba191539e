//! Callbacks from librdkafka to a member.

use super::{lanes::Lanes, wish};
use crate::trouble::Trouble;
use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::KafkaError,
    statistics::Statistics,
    types::RDKafkaRespErr,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

/// Interval at which a revocation that waits for handlers checks whether the partitions were lost.
const GLANCE: Duration = Duration::from_millis(200);

/// Handles assigned and revoked partitions, on the polling thread.
pub(super) struct Watcher {
    pub(super) trouble: Trouble,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    pub(super) commits: bool,
    /// How long a revoked partition waits for its handlers.
    pub(super) patience: Duration,
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
                    // Reading begins once the initial offsets are known: see `Poller::learn`.
                    consumer.incremental_assign(&TopicPartitionList::new())
                } else {
                    consumer.assign(partitions)
                }
            }
            _ => {
                if consumer.assignment_lost() {
                    tracing::warn!(
                        ?partitions,
                        "partitions were lost; another member redelivers their unsettled records"
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
            tracing::error!(%error, "assignment of partitions failed");
        }
    }
}

/// Returns those of the partitions that are being read. librdkafka does not know the others.
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
    /// Waits until the handlers of revoked partitions have finished and their work is committed, so
    /// that the next owner begins after it. Other partitions are committed meanwhile as usual.
    fn let_go(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList) {
        self.lanes.leave(partitions);
        let clock = self.lanes.clock();
        let start = clock.elapsed();
        let is_over = || consumer.assignment_lost() || clock.elapsed().saturating_sub(start) >= self.patience;
        while !self.lanes.wait_for(partitions, self.commits, GLANCE.min(self.patience)) && !is_over() {}
    }
}
