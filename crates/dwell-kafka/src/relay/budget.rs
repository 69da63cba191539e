//! How much a relay keeps in memory.

use super::passing::Load;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// What all workers of a relay may have in memory together, waiting or on its way.
///
/// Where that is used up each still has a small share of its own, and one record at least, so that none has to wait for another:
/// a worker that may take no more has something in memory, and looks again when that is gone. The shares of all waiting and
/// of all on its way come to a quarter of the whole.
///
/// Levels take no more than half of it: what is on its last stretch has a time to be kept, and does not wait behind them.
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

    /// Nothing yet, of what will be counted.
    pub(super) fn part(self: &Arc<Self>) -> Part {
        Part { of: self.clone(), load: Load::default() }
    }

    /// Up to where the last stretch may fill it.
    pub(super) fn whole(&self) -> Load {
        self.most
    }

    /// Up to where a level may.
    pub(super) fn half(&self) -> Load {
        Load { count: self.most.count.div_ceil(2), bytes: self.most.bytes.div_ceil(2) }
    }

    fn load(&self) -> Load {
        Load { count: self.count.load(SeqCst), bytes: self.bytes.load(SeqCst) }
    }

    /// What there was before.
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

    /// One more record of this size, if all have less than this limit, or whoever takes it has less than its share beside it.
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

    /// One record of this size goes on in another part, where [`Self::try_add`] would take it. Nobody else gets its room.
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

    /// So much goes on in another part. Nobody else gets its room.
    pub(super) fn pass(&mut self, to: &mut Self, load: Load) {
        self.load.remove(load);
        to.load.add(load);
    }

    /// One record has another size now.
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

    /// How many of this size fit, for one who has so much beside.
    fn fill(part: &mut Part, size: usize, beside: Load) -> usize {
        let limit = part.of.whole();
        (0..1_000).take_while(|_| part.try_add(size, beside, limit)).count()
    }

    #[test]
    fn levels_leave_half_of_it_to_the_last_stretch() {
        // By their number, and by their bytes.
        for (size, half) in [(1, 80), (100, 8)] {
            let budget = Budget::new((160, 1_600), 2);
            let (mut level, mut due) = (budget.part(), budget.part());
            let taken = (0..1_000).take_while(|_| level.try_add(size, NOTHING, budget.half())).count();
            assert_eq!(taken, half);
            assert_eq!(fill(&mut due, size, NOTHING), half);
        }
    }

    #[test]
    fn what_goes_from_one_part_to_another_leaves_no_room_to_others() {
        let budget = Budget::new((160, 1_600), 2);
        let (mut taking, mut held, mut other) = (budget.part(), budget.part(), budget.part());
        assert_eq!(fill(&mut taking, 10, NOTHING), 160);
        let count = |part: &Part| part.load().count;
        assert!(taking.try_pass(&mut held, 10, NOTHING, budget.whole()), "it has its room");
        let full = Load { count: 80, bytes: 800 };
        assert!(!taking.try_pass(&mut held, 10, full, budget.half()), "that is more than a level may hold");
        taking.pass(&mut held, Load { count: 2, bytes: 20 });
        assert_eq!((count(&taking), count(&held)), (157, 3));
        assert!(!other.try_add(1, full, budget.whole()));
        held.resize(10, 15);
        assert_eq!((held.load().bytes, budget.load().bytes), (35, 1_605));
        drop((taking, held));
        assert_eq!((budget.load().count, budget.load().bytes), (0, 0));
    }

    #[test]
    fn what_one_worker_has_in_memory_leaves_less_for_the_others_and_never_nothing() {
        // By their number, and by their bytes.
        for (size, all, share) in [(1, 160, 10), (100, 16, 1)] {
            let budget = Budget::new((160, 1_600), 2);
            let (mut one, mut two) = (budget.part(), budget.part());
            assert_eq!(fill(&mut one, size, NOTHING), all);
            assert_eq!(fill(&mut two, size, NOTHING), share, "the other has its share");
            assert_eq!(fill(&mut budget.part(), size, two.load()), 0, "for all that it does");
            one.remove(Load { count: all, bytes: all * size });
            assert_eq!(fill(&mut two, size, NOTHING), all - share);
            drop(two);
            assert_eq!(fill(&mut one, size, NOTHING), all);
        }
    }

    #[test]
    fn one_record_is_always_possible_however_small_the_budget() {
        let budget = Budget::new((1, 1), 19);
        let mut one = budget.part();
        assert_eq!(fill(&mut one, 5_000, NOTHING), 1);
        assert_eq!(fill(&mut budget.part(), 800, NOTHING), 1);
    }
}
