//! Determines whether a client of librdkafka works: whether it is in its group and reads its
//! partitions.
//!
//! librdkafka removes every broker that is missing from a metadata response. A broker that was
//! fenced while it hung returns none when it continues. A client that has removed its last broker
//! never connects again: it finds no coordinator, and a commit that needs one never returns. Only
//! another client helps, and [`super::poller`] replaces it.

use super::lane::Key;
use rdkafka::statistics::{Broker, ConsumerGroup, Partition, Statistics};
use std::{collections::BTreeMap, time::Duration};

/// How long a client may look for the coordinator of its group. If a cluster takes longer to elect
/// one, each client is replaced, and its deliveries in flight are duplicated. A client that never
/// finds a coordinator would cost more.
const NO_COORDINATOR: Duration = Duration::from_secs(5);
/// How long a partition may have more records while none of them is fetched.
const STALLED: Duration = Duration::from_secs(15);
/// How long a broker may be silent that receives many fetch requests per second.
const SILENT: Duration = Duration::from_secs(10);

/// The relevant part of librdkafka's statistics.
#[derive(Default)]
pub(super) struct Vitals {
    outside: Option<Outside>,
    /// Whether the client was in its group at the last observation.
    inside: bool,
    still: BTreeMap<Key, Still>,
}

/// The client is not in its group.
struct Outside {
    since: Duration,
    has_coordinator: bool,
    state: String,
}

/// A partition from which nothing is fetched.
struct Still {
    next: i64,
    since: Duration,
}

/// What is wrong with a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Complaint {
    /// The client is outside its group, or a commit does not return.
    Outside(String),
    /// Each of these partitions has more records from its offset on, and none of them is fetched.
    /// The list is not empty.
    Stalled(Vec<(Key, i64)>),
}

/// Time limits that depend on the settings.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Limit for joining the group: other members may finish their work first.
    pub(super) joining: Duration,
    /// Limit for a commit.
    pub(super) commit: Duration,
}

impl Vitals {
    /// Takes in the statistics of the group, and of each partition that is read and has no buffered
    /// records.
    pub(super) fn observe<'a>(
        &mut self,
        now: Duration,
        said: &Statistics,
        read: impl Iterator<Item = (Key, &'a Partition)>,
    ) {
        let is_alone = !said.brokers.values().any(is_up);
        self.outside = said.cgrp.as_ref().and_then(|group| self.outside(now, group));
        self.inside = said.cgrp.is_some() && self.outside.is_none();
        let before = std::mem::take(&mut self.still);
        for (key, partition) in read {
            // No client could read a partition without a leader.
            let has_leader = partition.leader >= 0 || is_alone;
            if partition.fetchq_cnt > 0 || !has_leader || (is_asked(said, partition) && !has_more(partition))
            {
                continue;
            }
            let next = partition.next_offset;
            let since = before.get(&key).filter(|still| still.next == next).map_or(now, |still| still.since);
            self.still.insert(key, Still { next, since });
        }
    }

    /// Returns whether the client is in its group.
    pub(super) fn is_inside(&self) -> bool {
        self.inside
    }

    fn outside(&self, now: Duration, group: &ConsumerGroup) -> Option<Outside> {
        let has_coordinator = group.state == "up";
        if has_coordinator && group.join_state == "steady" {
            return None;
        }
        let before = self.outside.as_ref().filter(|before| before.has_coordinator == has_coordinator);
        let since = before.map_or(now, |before| before.since);
        Some(Outside { since, has_coordinator, state: format!("{}, {}", group.state, group.join_state) })
    }

    /// Returns the complaint that has lasted too long, if any. `committing` is the time since which
    /// a commit has not returned.
    pub(super) fn complaint(
        &self,
        now: Duration,
        committing: Option<Duration>,
        limits: Limits,
    ) -> Option<Complaint> {
        let age = |since: Duration| now.saturating_sub(since);
        if let Some(Outside { since, has_coordinator, state }) = &self.outside {
            let limit = if *has_coordinator { limits.joining } else { NO_COORDINATOR };
            if age(*since) >= limit {
                let text = format!("outside its group for {} s ({state})", age(*since).as_secs());
                return Some(Complaint::Outside(text));
            }
        }
        if let Some(since) = committing.filter(|since| age(*since) >= limits.commit) {
            return Some(Complaint::Outside(format!(
                "a commit has not returned for {} s",
                age(since).as_secs()
            )));
        }
        let stalled = self.still.iter().filter(|(_, still)| age(still.since) >= STALLED);
        let stalled: Vec<_> = stalled.map(|(key, still)| (*key, still.next)).collect();
        (!stalled.is_empty()).then_some(Complaint::Stalled(stalled))
    }
}

/// Returns whether the client is connected to this broker. The coordinator is listed twice, once as
/// a logical broker.
fn is_up(broker: &Broker) -> bool {
    broker.source != "logical" && broker.source != "internal" && broker.state == "UP"
}

/// Returns whether the client fetches records of the partition from a broker that answers.
fn is_asked(said: &Statistics, partition: &Partition) -> bool {
    let silent = i64::try_from(SILENT.as_micros()).unwrap_or(i64::MAX);
    let answers =
        |broker: &Broker| broker.nodeid == partition.broker && is_up(broker) && broker.rxidle < silent;
    partition.fetch_state == "active" && said.brokers.values().any(answers)
}

fn has_more(partition: &Partition) -> bool {
    partition.next_offset >= 0 && partition.ls_offset > partition.next_offset
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { joining: Duration::from_secs(60), commit: Duration::from_secs(40) };

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn group(state: &str, join_state: &str) -> Statistics {
        let group = ConsumerGroup {
            state: state.to_owned(),
            join_state: join_state.to_owned(),
            ..ConsumerGroup::default()
        };
        let broker =
            Broker { nodeid: 1, state: "UP".to_owned(), source: "learned".to_owned(), ..Broker::default() };
        Statistics { cgrp: Some(group), brokers: [("b".to_owned(), broker)].into(), ..Statistics::default() }
    }

    /// Statistics of a client whose only broker is down.
    fn alone(state: &str, join_state: &str) -> Statistics {
        let mut said = group(state, join_state);
        said.brokers.values_mut().for_each(|broker| broker.state = "DOWN".to_owned());
        said
    }

    fn partition(next_offset: i64, ls_offset: i64) -> Partition {
        let fetch_state = "active".to_owned();
        Partition { broker: 1, leader: 1, next_offset, ls_offset, fetch_state, ..Partition::default() }
    }

    #[test]
    fn a_client_without_a_coordinator_is_soon_outside_its_group() {
        let mut vitals = Vitals::default();
        let lost = group("query-coord", "init");
        vitals.observe(seconds(1), &lost, [].into_iter());
        vitals.observe(seconds(5), &lost, [].into_iter());
        assert_eq!(vitals.complaint(seconds(5), None, LIMITS), None);
        let complaint = vitals.complaint(seconds(6), None, LIMITS);
        assert!(matches!(complaint, Some(Complaint::Outside(text)) if text.contains("query-coord")));
        assert!(!vitals.is_inside());
        vitals.observe(seconds(7), &group("up", "steady"), [].into_iter());
        assert!(vitals.is_inside());
        assert_eq!(vitals.complaint(seconds(90), None, LIMITS), None);
    }

    #[test]
    fn a_joining_client_may_wait_for_other_members() {
        let mut vitals = Vitals::default();
        vitals.observe(seconds(1), &group("query-coord", "init"), [].into_iter());
        for at in [4, 30, 60] {
            vitals.observe(seconds(at), &group("up", "wait-join"), [].into_iter());
            assert_eq!(vitals.complaint(seconds(at), None, LIMITS), None);
        }
        assert!(vitals.complaint(seconds(64), None, LIMITS).is_some());
    }

    #[test]
    fn a_partition_without_a_leader_is_not_stalled_while_a_broker_is_connected() {
        let of = Partition { leader: -1, broker: -1, ..partition(7, 9) };
        for (said, is_stalled) in [(group("up", "steady"), false), (alone("up", "steady"), true)] {
            let mut vitals = Vitals::default();
            for at in [1, 16] {
                vitals.observe(seconds(at), &said, [((0, 3), &of)].into_iter());
            }
            assert_eq!(vitals.complaint(seconds(16), None, LIMITS).is_some(), is_stalled);
        }
    }

    #[test]
    fn a_commit_that_does_not_return_causes_a_complaint() {
        let mut vitals = Vitals::default();
        vitals.observe(seconds(1), &group("up", "steady"), [].into_iter());
        assert_eq!(vitals.complaint(seconds(40), Some(seconds(1)), LIMITS), None);
        assert!(vitals.complaint(seconds(41), Some(seconds(1)), LIMITS).is_some());
    }

    #[test]
    fn a_partition_with_unfetched_records_stalls() {
        let (mut vitals, said) = (Vitals::default(), group("up", "steady"));
        let mut look = |at, next, end| {
            let of = partition(next, end);
            vitals.observe(seconds(at), &said, [((0, 3), &of)].into_iter());
            vitals.complaint(seconds(at), None, LIMITS)
        };
        assert_eq!(look(1, 7, 7), None);
        assert_eq!(look(20, 7, 9), None, "its new records arrived a moment ago");
        assert_eq!(look(30, 8, 9), None, "its offset has moved");
        assert_eq!(look(45, 8, 9), Some(Complaint::Stalled(vec![((0, 3), 8)])));
        assert_eq!(look(46, 9, 9), None);
    }

    #[test]
    fn every_stalled_partition_is_reported() {
        let (mut vitals, said) = (Vitals::default(), group("up", "steady"));
        let of = [partition(7, 9), partition(1, 2), partition(5, 5)];
        for at in [1, 16] {
            vitals.observe(seconds(at), &said, of.iter().zip(0..).map(|(of, number)| ((0, number), of)));
        }
        let stalled = vec![((0, 0), 7), ((0, 1), 1)];
        assert_eq!(vitals.complaint(seconds(16), None, LIMITS), Some(Complaint::Stalled(stalled)));
    }

    #[test]
    fn a_partition_with_a_lost_or_silent_broker_stalls_without_known_records() {
        let of = partition(7, 7);
        for (state, rxidle) in [("DOWN", 0), ("UP", 11_000_000)] {
            let (mut vitals, mut said) = (Vitals::default(), group("up", "steady"));
            for broker in said.brokers.values_mut() {
                (broker.state, broker.rxidle) = (state.to_owned(), rxidle);
            }
            vitals.observe(seconds(1), &said, [((0, 3), &of)].into_iter());
            vitals.observe(seconds(16), &said, [((0, 3), &of)].into_iter());
            let stalled = Complaint::Stalled(vec![((0, 3), 7)]);
            assert_eq!(vitals.complaint(seconds(16), None, LIMITS), Some(stalled));
        }
    }
}
