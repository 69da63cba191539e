//! What the broker is asked and does not answer.

use rdkafka::{TopicPartitionList, error::KafkaError};
use std::{collections::BTreeSet, time::Duration};

/// How long the broker may take to say what is committed, where nothing is wrong as far as anybody knows.
const FIRST: Duration = Duration::from_secs(1);
/// The same after a question without an answer, and what that grows to: a broker may be slow.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

/// Partitions of which the broker does not say what is committed. While it says nothing of one, the library answers for none
/// that it was asked for at the same time: each is then asked for by itself, in turn, and holds up no other.
#[derive(Default)]
pub(super) struct Doubts {
    /// How many questions had no answer.
    count: usize,
    /// Those that were named in the log.
    named: BTreeSet<(String, i32)>,
}

impl Doubts {
    /// What to ask for.
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

    /// How long to wait for the answer.
    pub(super) fn patience(&self) -> Duration {
        match u32::try_from(self.count) {
            Ok(0) => FIRST,
            Ok(count) => SHORTEST.saturating_mul(2_u32.saturating_pow(count - 1)).min(LONGEST),
            Err(_) => LONGEST,
        }
    }

    /// There was no answer.
    pub(super) fn add(&mut self, asked: &TopicPartitionList, error: &KafkaError) {
        self.count += 1;
        // Of several, nobody knows which it was.
        let [one] = &asked.elements()[..] else { return };
        let (topic, partition) = (one.topic(), one.partition());
        if self.named.insert((topic.to_owned(), partition)) {
            tracing::warn!(%error, topic, partition, "Kafka does not say what is committed: it is asked until it does");
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

    #[test]
    fn an_answer_is_waited_for_a_little_at_first_and_never_for_long() {
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
