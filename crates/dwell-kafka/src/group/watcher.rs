//! What the library tells a member.

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

/// How often a partition that is taken away looks whether it was lost meanwhile.
const GLANCE: Duration = Duration::from_millis(200);

/// Hears of partitions that come and go, on the thread that polls.
pub(super) struct Watcher {
    pub(super) trouble: Trouble,
    pub(super) lanes: Arc<Lanes>,
    pub(super) wish: Arc<AtomicU8>,
    pub(super) commits: bool,
    /// How long a partition that is taken away waits for its handlers.
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
