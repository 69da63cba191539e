//! Which positions of a log may be committed, while messages complete in any order.

use std::collections::VecDeque;

/// Tracks one partition: positions are received in ascending order (gaps are fine), completed in any order, and
/// committed only up to the first that is not complete, so that a crash redelivers and never skips.
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
    /// The next position that a restart would read: the first that is open, or else the one behind all of them.
    commit: u64,
    /// Received and not yet below the mark: position, and whether it is complete.
    open: VecDeque<(u64, bool)>,
}

impl LowWater {
    /// Nothing received; a restart would read `position`.
    pub fn starting_at(position: u64) -> Self {
        Self { commit: position, open: VecDeque::new() }
    }

    /// `position` was handed out. One that is not above all before it is ignored: it is known already.
    pub fn received(&mut self, position: u64) {
        if position >= self.next() {
            if self.open.is_empty() {
                // What lies between is not there.
                self.commit = position;
            }
            self.open.push_back((position, false));
        }
    }

    /// The log goes on at `position` once more, with what may be something else: all from there on is forgotten, and what
    /// lies below stays as it is. Returns how many were open of those that are forgotten.
    pub fn back_to(&mut self, position: u64) -> usize {
        let kept = self.open.partition_point(|(at, _)| *at < position);
        let forgotten = self.open.drain(kept..).filter(|(_, complete)| !complete).count();
        self.commit = self.commit.min(position);
        forgotten
    }

    /// `position` is settled. Returns whether it was open.
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

    /// What to commit: the next position that a restart reads.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// The positions above the mark that are settled already, in ascending order: a restart would repeat them, unless
    /// somebody remembers.
    pub fn settled(&self) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().filter(|(_, complete)| *complete).map(|(at, _)| *at)
    }

    /// How many lie between the mark and the newest: what one stuck message holds back. Worth a bound.
    pub fn span(&self) -> usize {
        self.open.len()
    }

    /// How far the newest lies above the mark, in positions: more than [`Self::span`] where the log has gaps.
    pub fn reach(&self) -> u64 {
        self.next() - self.commit
    }

    /// Where the next one is expected, or above.
    pub fn next(&self) -> u64 {
        self.open.back().map_or(self.commit, |(last, _)| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_message_holds_the_mark_whatever_completes_behind_it() {
        let mut tracker = LowWater::starting_at(0);
        (0..1000).for_each(|position| tracker.received(position));
        (1..1000).for_each(|position| assert!(tracker.complete(position)));
        assert_eq!((tracker.commit(), tracker.span()), (0, 1000));
        assert!(tracker.complete(0));
        assert_eq!((tracker.commit(), tracker.span()), (1000, 0));
    }

    #[test]
    fn gaps_in_the_log_do_not_hold_the_mark() {
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
    fn where_the_log_goes_back_what_lies_below_stays_as_it_is() {
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
    fn completing_twice_or_something_unknown_changes_nothing() {
        let mut tracker = LowWater::starting_at(0);
        (0..3).for_each(|position| tracker.received(position));
        tracker.received(1);
        assert!(tracker.complete(2) && !tracker.complete(2) && !tracker.complete(9));
        assert_eq!((tracker.commit(), tracker.span()), (0, 3));
        assert_eq!(tracker.settled().collect::<Vec<_>>(), [2]);
    }
}
