//! A span of time: a list of entries, or a ring of finer slots.

use super::{
    list::List,
    slab::{NONE, Slab},
};
use crate::Timestamp;
use std::mem;

/// A ring has 2^8 slots. With fewer, ten million entries are in so many short lists that inserts
/// miss the cache.
const BITS: u32 = 8;
const SLOTS: usize = 1 << BITS;
const WORDS: usize = SLOTS / u64::BITS as usize;

/// A slot of level `n` spans 2^(8 n) ms, so a slot of level 0 is one millisecond. A block is a slot
/// of the top level.
const TOP: u32 = 4;
const BLOCK_BITS: u32 = BITS * TOP;

/// Limits at which a slot is crowded: the number of entries added to its list, and that number as a
/// fraction (one part in `CROWD_PART`) of all pending entries. Both must be reached. `CROWD` keeps
/// the number of rings small. `CROWD_PART` keeps the number of lists in use small enough for their
/// ends to stay in the cache, which is most of the cost of an insert. Together they bound the work
/// of a call beyond its own entries.
pub(super) const CROWD: u32 = 2048;
const CROWD_PART: usize = 512;

/// Maximum length of a list that is searched instead of opened.
const FEW: usize = 8;

/// Returns the block of a due time. The order of the blocks is that of their times, over all of
/// `i64`.
pub(super) fn block(due: i64) -> i32 {
    (due >> BLOCK_BITS) as i32
}

/// A span of time. It starts as a list of its entries in order of arrival. It becomes a ring of
/// slots of the next finer level when it is crowded, or when it is the first slot and its order is
/// needed.
pub(super) enum Slot {
    List(List),
    Ring(Box<Ring>),
}

pub(super) struct Ring {
    /// Entries that arrived before the slot was opened, until their order is needed.
    backlog: List,
    /// One bit for each slot, set if the slot is not empty.
    occupied: [u64; WORDS],
    slots: [Slot; SLOTS],
}

/// What one call of `pop_due` may remove.
pub(super) struct Batch<'a, T> {
    pub(super) now: i64,
    /// Maximum length of `into`.
    pub(super) limit: usize,
    pub(super) into: &'a mut Vec<(Timestamp, T)>,
}

impl<T> Batch<'_, T> {
    fn takes(&self, due: i64) -> bool {
        due <= self.now && self.into.len() < self.limit
    }

    fn take(&mut self, list: &mut List, index: u32, slab: &mut Slab<T>) {
        list.remove(index, slab);
        let entry = slab.remove(index);
        self.into.push((Timestamp(entry.due), entry.value));
    }
}

impl Slot {
    pub(super) const EMPTY: Self = Self::List(List::EMPTY);

    /// Adds an entry, which is in no list, after all entries of its millisecond. `self` is a block.
    pub(super) fn insert<T>(&mut self, index: u32, due: i64, slab: &mut Slab<T>) {
        let crowd = CROWD.max((slab.len() / CROWD_PART) as u32);
        let mut slot = self;
        let mut level = TOP;
        loop {
            if level > 0
                && let Self::List(list) = slot
                && list.arrivals() >= crowd
            {
                slot.open();
            }
            match slot {
                Self::List(list) => return list.push(index, slab),
                Self::Ring(ring) => {
                    level -= 1;
                    slot = ring.at(due, level);
                }
            }
        }
    }

    /// Removes an entry from its list. `self` is a block. Returns whether the block is empty now.
    pub(super) fn remove<T>(&mut self, index: u32, due: i64, slab: &mut Slab<T>) -> bool {
        self.remove_below(TOP, index, due, slab)
    }

    fn remove_below<T>(&mut self, level: u32, index: u32, due: i64, slab: &mut Slab<T>) -> bool {
        match self {
            Self::List(list) => {
                list.remove(index, slab);
                list.is_empty()
            }
            Self::Ring(ring) => {
                if ring.backlog.ends_with(index) {
                    ring.backlog.remove(index, slab);
                } else if ring.at(due, level - 1).remove_below(level - 1, index, due, slab) {
                    ring.vacate(digit(due, level - 1));
                }
                self.close_if_empty()
            }
        }
    }

    /// Returns the earliest due time in this block, which is not empty.
    pub(super) fn earliest<T>(&mut self, slab: &mut Slab<T>) -> i64 {
        let mut slot = self;
        let mut level = TOP;
        loop {
            slot.prepare(level, slab);
            match slot {
                Self::List(list) => return slab.entry(first(list, level, slab)).due,
                Self::Ring(ring) => {
                    level -= 1;
                    let number = ring.first().expect("a ring that is empty is closed");
                    slot = &mut ring.slots[number];
                }
            }
        }
    }

    /// Removes the entries that the batch takes, in order. `self` is a block. Returns whether the
    /// block is empty now.
    pub(super) fn pop<T>(&mut self, batch: &mut Batch<'_, T>, slab: &mut Slab<T>) -> bool {
        self.pop_below(TOP, batch, slab)
    }

    fn pop_below<T>(&mut self, level: u32, batch: &mut Batch<'_, T>, slab: &mut Slab<T>) -> bool {
        self.prepare(level, slab);
        match self {
            Self::List(list) => {
                while !list.is_empty() {
                    let index = first(list, level, slab);
                    if !batch.takes(slab.entry(index).due) {
                        return false;
                    }
                    batch.take(list, index, slab);
                }
                true
            }
            Self::Ring(ring) => {
                while let Some(number) = ring.first() {
                    if !ring.slots[number].pop_below(level - 1, batch, slab) {
                        return false;
                    }
                    ring.vacate(number);
                }
                self.close_if_empty()
            }
        }
    }

    /// Returns the number of bytes allocated below this slot.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::List(_) => 0,
            Self::Ring(ring) => size_of::<Ring>() + ring.slots.iter().map(Self::memory).sum::<usize>(),
        }
    }

    /// Ensures that the first entry is in a short list or in the first slot of a ring without a
    /// backlog.
    fn prepare<T>(&mut self, level: u32, slab: &mut Slab<T>) {
        if level > 0
            && let Self::List(list) = self
            && list.is_longer_than(FEW, slab)
        {
            self.open();
        }
        if let Self::Ring(ring) = self
            && !ring.backlog.is_empty()
        {
            ring.deal(level - 1, slab);
        }
    }

    /// Turns a list into a ring, with the list as its backlog.
    #[inline(never)] // The new ring is built on the stack, which callers should not pay for.
    fn open(&mut self) {
        if let Self::List(backlog) = *self {
            *self = Self::Ring(Box::new(Ring {
                backlog,
                occupied: [0; WORDS],
                slots: [const { Self::EMPTY }; SLOTS],
            }));
        }
    }

    /// Inserts earlier entries before the existing ones.
    fn prepend<T>(&mut self, mut earlier: List, slab: &mut Slab<T>) {
        let list = match self {
            Self::List(list) => list,
            Self::Ring(ring) => &mut ring.backlog,
        };
        earlier.append(*list, slab);
        *list = earlier;
    }

    fn close_if_empty(&mut self) -> bool {
        match self {
            Self::Ring(ring) if ring.backlog.is_empty() && ring.first().is_none() => {
                *self = Self::EMPTY;
                true
            }
            _ => false,
        }
    }
}

impl Ring {
    /// Returns the slot of a due time, and marks it as occupied.
    fn at(&mut self, due: i64, level: u32) -> &mut Slot {
        let number = digit(due, level);
        self.occupied[number / 64] |= 1 << (number % 64);
        &mut self.slots[number]
    }

    /// Moves the backlog to the slots, which have this level. In each slot, its entries come before
    /// the later ones and keep their order.
    #[inline(never)]
    fn deal<T>(&mut self, level: u32, slab: &mut Slab<T>) {
        let mut hands = [List::EMPTY; SLOTS];
        let mut index = mem::replace(&mut self.backlog, List::EMPTY).head();
        while index != NONE {
            let entry = slab.entry(index);
            let next = entry.next;
            hands[digit(entry.due, level)].push(index, slab);
            index = next;
        }
        for (number, hand) in hands.into_iter().enumerate().filter(|(_, hand)| !hand.is_empty()) {
            self.occupied[number / 64] |= 1 << (number % 64);
            self.slots[number].prepend(hand, slab);
        }
    }

    fn vacate(&mut self, number: usize) {
        self.occupied[number / 64] &= !(1 << (number % 64));
    }

    /// Returns the first slot that is not empty.
    fn first(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }
}

/// Returns the index of the slot for a due time in a ring whose slots have this level.
fn digit(due: i64, level: u32) -> usize {
    (due >> (BITS * level)) as usize & (SLOTS - 1)
}

/// Returns the earliest entry of a list that is not empty; of equal ones, the first. Visits all
/// entries, except at level 0, where all due times are equal.
fn first<T>(list: &List, level: u32, slab: &Slab<T>) -> u32 {
    match level {
        0 => list.head(),
        _ => list.indices(slab).min_by_key(|&index| slab.entry(index).due).unwrap_or(list.head()),
    }
}

#[cfg(test)]
impl Slot {
    /// Panics unless the invariants hold in this block. Returns its number of entries.
    pub(super) fn check<T>(&self, block: i32, slab: &Slab<T>) -> usize {
        let count = self.check_below(TOP, i64::from(block), slab);
        assert_ne!(count, 0, "empty blocks are removed");
        count
    }

    /// `number` counts the slots of this level since the epoch.
    fn check_below<T>(&self, level: u32, number: i64, slab: &Slab<T>) -> usize {
        match self {
            Self::List(list) => check_list(list, level, number, slab),
            Self::Ring(ring) => {
                let slots = ring.slots.iter().enumerate();
                let count = slots.map(|(digit, slot)| {
                    let count = slot.check_below(level - 1, number << BITS | digit as i64, slab);
                    let is_occupied = ring.occupied[digit / 64] >> (digit % 64) & 1 == 1;
                    assert_eq!(is_occupied, count > 0, "a bit is set if its slot is occupied");
                    count
                });
                let count = check_list(&ring.backlog, level, number, slab) + count.sum::<usize>();
                assert_ne!(count, 0, "empty rings are closed");
                count
            }
        }
    }
}

#[cfg(test)]
fn check_list<T>(list: &List, level: u32, number: i64, slab: &Slab<T>) -> usize {
    let mut previous = NONE;
    let mut count = 0;
    for index in list.indices(slab) {
        let entry = slab.entry(index);
        assert_eq!(entry.previous, previous, "links lead both ways");
        assert_eq!(entry.due >> (BITS * level), number, "an entry is in the slot of its due time");
        previous = index;
        count += 1;
    }
    assert!(list.ends_with(previous));
    assert!(count <= list.arrivals() as usize, "there are at least as many arrivals as entries");
    assert!(level == 0 || count <= ((TOP + 1 - level) * CROWD) as usize, "a list of {count} should be open");
    count
}
