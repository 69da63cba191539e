//! Queries for committed offsets that the broker does not answer.

use rdkafka::{TopicPartitionList, error::KafkaError};
use std::{collections::BTreeSet, time::Duration};

/// How long the first query for committed offsets may take.
const FIRST: Duration = Duration::from_secs(1);
/// How long a query after an unanswered one may take. It doubles up to the longest time, because a
/// broker may be slow.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

/// Partitions whose committed offsets the broker does not return. While it returns none for one
/// partition, librdkafka answers for none of the same query. So each partition is then queried
/// alone, in turn, and delays no other.
#[derive(Default)]
pub(super) struct Doubts {
    /// Number of unanswered queries.
    count: usize,
    /// Partitions that were named in the log.
    named: BTreeSet<(String, i32)>,
}

impl Doubts {
    /// Returns the partitions of the next query.
    pub(super) fn narrow(&self, unknown: TopicPartitionList) -> TopicPartitionList {
        if self.count == 0 {
            return unknown;
        }
        let all = unknown.elements();
        let one = &all[self.count % all.len()];
        let mut asked = TopicPartitionList::new();
        asked.add_partition(one.topic(), one.partition());
        asked
    }

    /// Returns the timeout of the next query.
    pub(super) fn patience(&self) -> Duration {
        match u32::try_from(self.count) {
            Ok(0) => FIRST,
            Ok(count) => SHORTEST.saturating_mul(2_u32.saturating_pow(count - 1)).min(LONGEST),
            Err(_) => LONGEST,
        }
    }

    /// Notes that a query was not answered.
    pub(super) fn add(&mut self, asked: &TopicPartitionList, error: &KafkaError) {
        self.count += 1;
        // With several partitions it is unknown which of them is the reason.
        let [one] = &asked.elements()[..] else { return };
        let (topic, partition) = (one.topic(), one.partition());
        if self.named.insert((topic.to_owned(), partition)) {
            tracing::warn!(%error, topic, partition, "committed offset unknown; retrying");
        }
    }
}

#[cfg(test)]
impl Doubts {
    pub(super) fn are_there(&self) -> bool {
        self.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::error::RDKafkaErrorCode as Code;

    #[test]
    fn after_an_unanswered_query_each_partition_is_queried_alone_in_turn() {
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

    #[test]
    fn query_timeouts_start_short_and_are_bounded() {
        let mut doubts = Doubts::default();
        assert!(doubts.patience() <= Duration::from_secs(1));
        let mut ask = || {
            doubts.add(&TopicPartitionList::new(), &KafkaError::OffsetFetch(Code::OperationTimedOut));
            doubts.patience().as_millis()
        };
        assert_eq!([(); 6].map(|()| ask()), [250, 500, 1_000, 2_000, 4_000, 5_000]);
        doubts.count = usize::MAX;
        assert_eq!(doubts.patience(), LONGEST);
    }
}
