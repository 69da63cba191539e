//! The committable position of a log whose messages complete in any order.

use std::collections::VecDeque;

/// Tracks one partition. Positions are received in ascending order, possibly with gaps, and are
/// completed in any order. The committable position is the first one that is not complete, so a
/// crash causes redeliveries and never a loss.
///
/// ```
/// use dwell_core::LowWater;
///
/// let mut tracker = LowWater::starting_at(10);
/// (10..13).for_each(|position| tracker.received(position));
/// tracker.complete(12);
/// assert_eq!(tracker.commit(), 10);
/// tracker.complete(10);
/// assert_eq!(tracker.commit(), 11);
/// tracker.complete(11);
/// assert_eq!(tracker.commit(), 13);
/// ```
#[derive(Clone, Debug)]
pub struct LowWater {
    /// Committable position: the first open one, or the one after all received positions.
    commit: u64,
    /// Received positions from `commit` on, each with whether it is complete.
    open: VecDeque<(u64, bool)>,
}

impl LowWater {
    /// Creates a tracker that has received nothing. A restart would read `position`.
    pub fn starting_at(position: u64) -> Self {
        Self { commit: position, open: VecDeque::new() }
    }

    /// Records that `position` was delivered. A position that is not above all earlier ones is
    /// known already, and is ignored.
    pub fn received(&mut self, position: u64) {
        if position >= self.next() {
            if self.open.is_empty() {
                // The positions in between do not exist.
                self.commit = position;
            }
            self.open.push_back((position, false));
        }
    }

    /// Removes all positions from `position` on, because the log continues there, possibly with
    /// other messages. Lower positions do not change. Returns how many of the removed positions
    /// were open.
    pub fn back_to(&mut self, position: u64) -> usize {
        let kept = self.open.partition_point(|(at, _)| *at < position);
        let forgotten = self.open.drain(kept..).filter(|(_, complete)| !complete).count();
        self.commit = self.commit.min(position);
        forgotten
    }

    /// Records that `position` is settled. Returns whether it was open.
    pub fn complete(&mut self, position: u64) -> bool {
        let Ok(index) = self.open.binary_search_by_key(&position, |(at, _)| *at) else { return false };
        let fresh = !std::mem::replace(&mut self.open[index].1, true);
        while let Some((at, true)) = self.open.front().copied() {
            self.open.pop_front();
            self.commit = self.open.front().map_or(at + 1, |(next, _)| *next);
        }
        fresh
    }

    /// Whether `position` was received and is not settled.
    pub fn is_open(&self, position: u64) -> bool {
        self.open.binary_search_by_key(&position, |(at, _)| *at).is_ok_and(|index| !self.open[index].1)
    }

    /// Returns the position to commit: the one that a restart reads next.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Returns the settled positions above the committable one, in ascending order. A restart
    /// repeats their messages unless they are stored elsewhere.
    pub fn settled(&self) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().filter(|(_, complete)| *complete).map(|(at, _)| *at)
    }

    /// Returns the number of received positions from the committable one on. One stuck message
    /// makes it grow, so it should be limited.
    pub fn span(&self) -> usize {
        self.open.len()
    }

    /// Returns the distance from the committable position to the end, in positions. It exceeds
    /// [`Self::span`] if the log has gaps.
    pub fn reach(&self) -> u64 {
        self.next() - self.commit
    }

    /// Returns the lowest position that is accepted next.
    pub fn next(&self) -> u64 {
        self.open.back().map_or(self.commit, |(last, _)| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_message_blocks_the_commit() {
        let mut tracker = LowWater::starting_at(0);
        (0..1000).for_each(|position| tracker.received(position));
        (1..1000).for_each(|position| assert!(tracker.complete(position)));
        assert_eq!((tracker.commit(), tracker.span()), (0, 1000));
        assert!(tracker.complete(0));
        assert_eq!((tracker.commit(), tracker.span()), (1000, 0));
    }

    #[test]
    fn gaps_in_the_log_do_not_block_the_commit() {
        let mut tracker = LowWater::starting_at(5);
        [7, 20].into_iter().for_each(|position| tracker.received(position));
        assert_eq!((tracker.commit(), tracker.span(), tracker.reach(), tracker.next()), (7, 2, 14, 21));
        assert!(tracker.complete(7));
        assert!(tracker.is_open(20) && !tracker.is_open(7));
        assert_eq!((tracker.commit(), tracker.span(), tracker.reach(), tracker.next()), (20, 1, 1, 21));
        assert!(tracker.complete(20));
        tracker.received(50);
        assert_eq!((tracker.commit(), tracker.reach()), (50, 1));
    }

    #[test]
    fn going_back_keeps_lower_positions() {
        let mut tracker = LowWater::starting_at(10);
        (10..15).for_each(|position| tracker.received(position));
        [11, 14].into_iter().for_each(|position| assert!(tracker.complete(position)));
        assert_eq!(tracker.back_to(12), 2);
        assert_eq!((tracker.commit(), tracker.next()), (10, 12));
        assert!(tracker.is_open(10) && !tracker.is_open(12));
        tracker.received(12);
        assert!(tracker.complete(10));
        assert_eq!(tracker.commit(), 12);
        assert_eq!(tracker.back_to(3), 1);
        assert_eq!((tracker.commit(), tracker.next()), (3, 3));
    }

    #[test]
    fn completing_a_settled_or_unknown_position_changes_nothing() {
        let mut tracker = LowWater::starting_at(0);
        (0..3).for_each(|position| tracker.received(position));
        tracker.received(1);
        assert!(tracker.complete(2) && !tracker.complete(2) && !tracker.complete(9));
        assert_eq!((tracker.commit(), tracker.span()), (0, 3));
        assert_eq!(tracker.settled().collect::<Vec<_>>(), [2]);
    }
}
