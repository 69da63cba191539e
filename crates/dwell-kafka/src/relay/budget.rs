//! Limits the memory of a relay.

use super::passing::Load;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Limit of what all workers of a relay together have in memory, waiting or in flight.
///
/// When the budget is used up, each worker still has a small share of its own, and at least one
/// record, so that no worker waits for another: a worker that may take no more has records in
/// memory, and checks again when they are gone. The shares of all waiting and in-flight records
/// add up to a quarter of the budget.
///
/// Levels get at most half of the budget. Records on their last stretch have to be forwarded on
/// time, and must not wait for levels.
pub(super) struct Budget {
    most: Load,
    share: Load,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Budget {
    pub(super) fn new((count, bytes): (usize, usize), workers: usize) -> Arc<Self> {
        let share = |of: usize| (of / 8 / workers.max(1)).max(1);
        let (most, share) = (Load { count, bytes }, Load { count: share(count), bytes: share(bytes) });
        let (count, bytes) = Default::default();
        Arc::new(Self { most, share, count, bytes })
    }

    /// Returns an empty part of the budget.
    pub(super) fn part(self: &Arc<Self>) -> Part {
        Part { of: self.clone(), load: Load::default() }
    }

    /// Returns the limit for the last stretch.
    pub(super) fn whole(&self) -> Load {
        self.most
    }

    /// Returns the limit for levels.
    pub(super) fn half(&self) -> Load {
        Load { count: self.most.count.div_ceil(2), bytes: self.most.bytes.div_ceil(2) }
    }

    fn load(&self) -> Load {
        Load { count: self.count.load(SeqCst), bytes: self.bytes.load(SeqCst) }
    }

    /// Adds to the load. Returns the load before.
    fn add(&self, more: Load) -> Load {
        Load {
            count: self.count.fetch_add(more.count, SeqCst),
            bytes: self.bytes.fetch_add(more.bytes, SeqCst),
        }
    }

    fn remove(&self, less: Load) {
        self.count.fetch_sub(less.count, SeqCst);
        self.bytes.fetch_sub(less.bytes, SeqCst);
    }
}

/// What one worker has in memory for one purpose.
pub(super) struct Part {
    of: Arc<Budget>,
    load: Load,
}

impl Part {
    pub(super) fn load(&self) -> Load {
        self.load
    }

    /// Adds a record of this size, if the total is below this limit or the worker has less than its
    /// share, including the load `beside`.
    pub(super) fn try_add(&mut self, size: usize, beside: Load, limit: Load) -> bool {
        let one = Load { count: 1, bytes: size };
        let before = self.of.add(one);
        let fits = before.is_below(limit) || beside.plus(self.load).is_below(self.of.share);
        if fits {
            self.load.add(one);
        } else {
            self.of.remove(one);
        }
        fits
    }

    /// Moves a record of this size to another part, where [`Self::try_add`] would accept it. Its
    /// room is not available to others in between.
    pub(super) fn try_pass(&mut self, to: &mut Self, size: usize, beside: Load, limit: Load) -> bool {
        let one = Load { count: 1, bytes: size };
        let mut without = self.of.load();
        without.remove(one);
        let fits = without.is_below(limit) || beside.plus(to.load).is_below(self.of.share);
        if fits {
            self.pass(to, one);
        }
        fits
    }

    /// Moves a load to another part. Its room is not available to others in between.
    pub(super) fn pass(&mut self, to: &mut Self, load: Load) {
        self.load.remove(load);
        to.load.add(load);
    }

    /// Changes the size of one record.
    pub(super) fn resize(&mut self, before: usize, now: usize) {
        let [before, now] = [before, now].map(|bytes| Load { count: 0, bytes });
        self.of.add(now);
        self.of.remove(before);
        self.load.add(now);
        self.load.remove(before);
    }

    pub(super) fn remove(&mut self, less: Load) {
        self.load.remove(less);
        self.of.remove(less);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.remove(self.load);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Load = Load { count: 0, bytes: 0 };

    /// Returns how many records of this size fit, for a worker with this load beside them.
    fn fill(part: &mut Part, size: usize, beside: Load) -> usize {
        let limit = part.of.whole();
        (0..1_000).take_while(|_| part.try_add(size, beside, limit)).count()
    }

    #[test]
    fn levels_leave_half_of_the_budget_to_the_last_stretch() {
        // Limited by count, and by bytes.
        for (size, half) in [(1, 80), (100, 8)] {
            let budget = Budget::new((160, 1_600), 2);
            let (mut level, mut due) = (budget.part(), budget.part());
            let taken = (0..1_000).take_while(|_| level.try_add(size, NOTHING, budget.half())).count();
            assert_eq!(taken, half);
            assert_eq!(fill(&mut due, size, NOTHING), half);
        }
    }

    #[test]
    fn moving_between_parts_frees_no_room_for_others() {
        let budget = Budget::new((160, 1_600), 2);
        let (mut taking, mut held, mut other) = (budget.part(), budget.part(), budget.part());
        assert_eq!(fill(&mut taking, 10, NOTHING), 160);
        let count = |part: &Part| part.load().count;
        assert!(taking.try_pass(&mut held, 10, NOTHING, budget.whole()), "the record already has its room");
        let full = Load { count: 80, bytes: 800 };
        assert!(!taking.try_pass(&mut held, 10, full, budget.half()), "a level may not hold more");
        taking.pass(&mut held, Load { count: 2, bytes: 20 });
        assert_eq!((count(&taking), count(&held)), (157, 3));
        assert!(!other.try_add(1, full, budget.whole()));
        held.resize(10, 15);
        assert_eq!((held.load().bytes, budget.load().bytes), (35, 1_605));
        drop((taking, held));
        assert_eq!((budget.load().count, budget.load().bytes), (0, 0));
    }

    #[test]
    fn one_worker_leaves_the_others_at_least_their_share() {
        // Limited by count, and by bytes.
        for (size, all, share) in [(1, 160, 10), (100, 16, 1)] {
            let budget = Budget::new((160, 1_600), 2);
            let (mut one, mut two) = (budget.part(), budget.part());
            assert_eq!(fill(&mut one, size, NOTHING), all);
            assert_eq!(fill(&mut two, size, NOTHING), share, "the other worker has its share");
            assert_eq!(
                fill(&mut budget.part(), size, two.load()),
                0,
                "the share covers all parts of a worker"
            );
            one.remove(Load { count: all, bytes: all * size });
            assert_eq!(fill(&mut two, size, NOTHING), all - share);
            drop(two);
            assert_eq!(fill(&mut one, size, NOTHING), all);
        }
    }

    #[test]
    fn one_record_always_fits() {
        let budget = Budget::new((1, 1), 19);
        let mut one = budget.part();
        assert_eq!(fill(&mut one, 5_000, NOTHING), 1);
        assert_eq!(fill(&mut budget.part(), 800, NOTHING), 1);
    }
}
