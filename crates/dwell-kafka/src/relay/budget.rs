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

    /// One more record of this size, if there is room for it, or whoever takes it has less than its share beside it.
    pub(super) fn try_add(&mut self, size: usize, beside: Load) -> bool {
        let one = Load { count: 1, bytes: size };
        let before = self.of.add(one);
        let fits = before.is_below(self.of.most) || beside.plus(self.load).is_below(self.of.share);
        if fits {
            self.load.add(one);
        } else {
            self.of.remove(one);
        }
        fits
    }

    /// What is in memory already.
    pub(super) fn add(&mut self, more: Load) {
        self.of.add(more);
        self.load.add(more);
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
        (0..1_000).take_while(|_| part.try_add(size, beside)).count()
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
        one.add(Load { count: 5, bytes: 5_000 });
        assert_eq!(fill(&mut budget.part(), 800, NOTHING), 1);
    }
}
