//! A consumer group: the assignment of partitions, read positions and committed offsets.

use dwell_core::{LowWater, Subscription, Text};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::Notify;

/// A group. It reads *lanes*: first the partitions of its topic, then those of its retry topic.
pub(super) struct Group {
    pub(super) topic: Text,
    pub(super) subscription: Text,
    /// Whether a subscription was declared. Otherwise the group only keeps unclaimed messages.
    pub(super) declared: bool,
    /// First offset that a new owner reads, for each lane.
    pub(super) committed: Vec<u64>,
    /// Current assignment of each lane.
    claims: Vec<Option<Claim>>,
    members: BTreeMap<u64, Member>,
    /// Wakes every waiting receive of the group.
    pub(super) wake: Arc<Notify>,
}

struct Member {
    session: u64,
    /// Lane to read first. It rotates so that a busy lane does not starve the others.
    turn: usize,
}

/// Assignment of a lane to a member.
pub(super) struct Claim {
    member: u64,
    /// Fence of all receipts under this assignment.
    pub(super) epoch: u64,
    /// Next offset to read.
    pub(super) next: u64,
    pub(super) tracker: LowWater,
}

/// Returns the name of a subscription's group.
pub(super) fn group_name(topic: &str, subscription: &str) -> Text {
    format!("{topic}.{subscription}").into()
}

/// Returns the name of the topic that only this subscription reads.
pub(super) fn retry_topic(group: &str) -> Text {
    format!("dwell.retry.{group}").into()
}

impl Group {
    /// Creates a group that reads its topic from `start`, and its retry topic from the beginning.
    pub(super) fn new(topic: &Text, subscription: &Text, declared: bool, start: Vec<u64>) -> Self {
        let lanes = start.len() * 2;
        let mut committed = start;
        committed.resize(lanes, 0);
        Self {
            topic: topic.clone(),
            subscription: subscription.clone(),
            declared,
            committed,
            claims: (0..lanes).map(|_| None).collect(),
            members: BTreeMap::new(),
            wake: Arc::default(),
        }
    }

    pub(super) fn name(&self) -> Text {
        group_name(&self.topic, &self.subscription)
    }

    pub(super) fn is_of(&self, subscription: &Subscription) -> bool {
        self.topic == subscription.topic && self.subscription == subscription.name
    }

    /// Returns the topic and partition of a lane.
    pub(super) fn place(&self, lane: usize) -> (Text, usize) {
        let partitions = self.claims.len() / 2;
        match lane.checked_sub(partitions) {
            None => (self.topic.clone(), lane),
            Some(partition) => (retry_topic(&self.name()), partition),
        }
    }

    pub(super) fn is_member(&self, member: u64) -> bool {
        self.members.contains_key(&member)
    }

    pub(super) fn join(&mut self, member: u64, session: u64, epochs: &AtomicU64) {
        self.members.insert(member, Member { session, turn: 0 });
        self.rebalance(epochs);
    }

    pub(super) fn leave(&mut self, member: u64, epochs: &AtomicU64) {
        if self.members.remove(&member).is_some() {
            self.rebalance(epochs);
        }
    }

    /// Removes all members of a session.
    pub(super) fn drop_session(&mut self, session: u64, epochs: &AtomicU64) {
        let before = self.members.len();
        self.members.retain(|_, member| member.session != session);
        if self.members.len() != before {
            self.rebalance(epochs);
        }
    }

    /// Removes all members, as after a broker failure.
    pub(super) fn drop_all(&mut self, epochs: &AtomicU64) {
        self.members.clear();
        self.rebalance(epochs);
    }

    /// Returns the lanes of a member, starting at another one each time.
    pub(super) fn lanes_of(&mut self, member: u64) -> Vec<usize> {
        let turn = self.members.get_mut(&member).map_or(0, |member| {
            member.turn = member.turn.wrapping_add(1);
            member.turn
        });
        let owns = |lane: &usize| self.claims[*lane].as_ref().is_some_and(|claim| claim.member == member);
        let mut lanes: Vec<_> = (0..self.claims.len()).filter(owns).collect();
        let middle = turn % lanes.len().max(1);
        lanes.rotate_left(middle);
        lanes
    }

    /// Returns the current claim of a lane.
    pub(super) fn claim(&mut self, lane: usize) -> Option<&mut Claim> {
        self.claims.get_mut(lane)?.as_mut()
    }

    /// Returns the claim of a lane if this member still holds it under this epoch.
    pub(super) fn claim_of(&mut self, lane: usize, member: u64, epoch: u64) -> Option<&mut Claim> {
        self.claim(lane).filter(|claim| claim.member == member && claim.epoch == epoch)
    }

    /// Marks an offset as done, and commits up to the first gap.
    pub(super) fn complete(&mut self, lane: usize, offset: u64) {
        if let Some(claim) = self.claims[lane].as_mut() {
            claim.tracker.complete(offset);
            self.committed[lane] = claim.tracker.commit();
        }
    }

    /// Distributes the lanes evenly among the members, for topic and retry topic separately, and
    /// moves as few as possible.
    fn rebalance(&mut self, epochs: &AtomicU64) {
        let (committed, members) = (&self.committed, &self.members);
        let partitions = self.claims.len() / 2;
        for (half, lanes) in self.claims.chunks_mut(partitions.max(1)).enumerate() {
            let mut load: BTreeMap<u64, usize> = members.keys().map(|member| (*member, 0)).collect();
            for lane in lanes.iter_mut() {
                match lane.as_ref().and_then(|claim| load.get_mut(&claim.member)) {
                    Some(count) => *count += 1,
                    None => *lane = None,
                }
            }
            let give = |index: usize, lane: &mut Option<Claim>, member: u64| {
                let start = committed[half * partitions + index];
                let epoch = epochs.fetch_add(1, Ordering::Relaxed);
                *lane = Some(Claim { member, epoch, next: start, tracker: LowWater::starting_at(start) });
            };
            for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.is_none()) {
                let Some(member) = least(&load) else { break };
                give(index, lane, member);
                load.entry(member).and_modify(|count| *count += 1);
            }
            while let (Some(from), Some(to)) = (most(&load), least(&load)) {
                if load[&from] <= load[&to] + 1 {
                    break;
                }
                let moved = lanes
                    .iter_mut()
                    .enumerate()
                    .find(|(_, lane)| lane.as_ref().is_some_and(|claim| claim.member == from));
                let Some((index, lane)) = moved else { break };
                give(index, lane, to);
                load.entry(from).and_modify(|count| *count -= 1);
                load.entry(to).and_modify(|count| *count += 1);
            }
        }
        self.wake.notify_waiters();
    }
}

fn least(load: &BTreeMap<u64, usize>) -> Option<u64> {
    load.iter().min_by_key(|(_, count)| **count).map(|(member, _)| *member)
}

fn most(load: &BTreeMap<u64, usize>) -> Option<u64> {
    load.iter().max_by_key(|(_, count)| **count).map(|(member, _)| *member)
}
