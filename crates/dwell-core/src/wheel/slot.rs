//! A span of time, as a list or, opened, as a ring of finer slots.

use super::{
    list::List,
    slab::{NONE, Slab},
};
use crate::Timestamp;
use std::mem;

/// A ring has 2^8 slots: with fewer, ten million entries are in so many short lists that inserts miss the cache.
const BITS: u32 = 8;
const SLOTS: usize = 1 << BITS;
const WORDS: usize = SLOTS / u64::BITS as usize;

/// A slot of level `n` spans 2^(8 n) ms; one of level 0 a single millisecond. A block is a slot of the top level.
const TOP: u32 = 4;
const BLOCK_BITS: u32 = BITS * TOP;

/// A slot is crowded once so many have arrived in its list, if they are also this part of all that is pending. The number
/// keeps rings few; the part keeps the lists that are in use at once so few that their ends stay in the cache, which is
/// most of what an insert costs. Together they bound what a call does on top of its own entries.
pub(super) const CROWD: u32 = 2048;
const CROWD_PART: usize = 512;

/// A list of at most this many is searched for its first, not opened.
const FEW: usize = 8;

/// The block of a due time. Blocks are in the order of their times, over all of `i64`.
pub(super) fn block(due: i64) -> i32 {
    (due >> BLOCK_BITS) as i32
}

/// A span of time. It starts as a list of whatever falls into it, in the order of arrival, and becomes a ring of slots of
/// the next finer level when it is crowded, or when it is the first and its order is wanted.
pub(super) enum Slot {
    List(List),
    Ring(Box<Ring>),
}

pub(super) struct Ring {
    /// What came before the slot was opened, until its order is wanted.
    backlog: List,
    /// One bit for each slot that is not empty.
    occupied: [u64; WORDS],
    slots: [Slot; SLOTS],
}

/// What one call may take out.
pub(super) struct Batch<'a, T> {
    pub(super) now: i64,
    /// How long `into` may get.
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

    /// Puts an entry that is in no list behind all others of its millisecond. `self` is a block.
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

    /// Takes an entry out of its list. `self` is a block; returns whether it is empty now.
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

    /// The earliest due time in this block, which is not empty.
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

    /// Takes out what the batch takes, in order. `self` is a block; returns whether it is empty now.
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

    /// Bytes allocated below this slot.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::List(_) => 0,
            Self::Ring(ring) => size_of::<Ring>() + ring.slots.iter().map(Self::memory).sum::<usize>(),
        }
    }

    /// Sees to it that what comes first in this slot is found in a short list or in the first slot of its ring.
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
    #[inline(never)] // A new ring is built on the stack: not on that of everyone who may have to open a slot.
    fn open(&mut self) {
        if let Self::List(backlog) = *self {
            *self = Self::Ring(Box::new(Ring {
                backlog,
                occupied: [0; WORDS],
                slots: [const { Self::EMPTY }; SLOTS],
            }));
        }
    }

    /// Puts what came earlier before what is here.
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
    /// The slot of a due time, which is about to be occupied or is.
    fn at(&mut self, due: i64, level: u32) -> &mut Slot {
        let number = digit(due, level);
        self.occupied[number / 64] |= 1 << (number % 64);
        &mut self.slots[number]
    }

    /// Deals the backlog out to the slots, which are of this level: in each before what came later, and in the same order.
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

    /// The first slot that is not empty.
    fn first(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }
}

/// Which slot of a ring, whose slots are of this level, a due time falls into.
fn digit(due: i64, level: u32) -> usize {
    (due >> (BITS * level)) as usize & (SLOTS - 1)
}

/// The earliest of a list that is not empty, and among equals the one that came first. Looks at all of it, except in a
/// slot of level 0, where all are equal.
fn first<T>(list: &List, level: u32, slab: &Slab<T>) -> u32 {
    match level {
        0 => list.head(),
        _ => list.indices(slab).min_by_key(|&index| slab.entry(index).due).unwrap_or(list.head()),
    }
}

#[cfg(test)]
impl Slot {
    /// Panics unless the invariants hold in this block; returns how many entries it has.
    pub(super) fn check<T>(&self, block: i32, slab: &Slab<T>) -> usize {
        let count = self.check_below(TOP, i64::from(block), slab);
        assert_ne!(count, 0, "an empty block is removed");
        count
    }

    /// `number` is that of the slot among all of its level, since the epoch.
    fn check_below<T>(&self, level: u32, number: i64, slab: &Slab<T>) -> usize {
        match self {
            Self::List(list) => check_list(list, level, number, slab),
            Self::Ring(ring) => {
                let slots = ring.slots.iter().enumerate();
                let count = slots.map(|(digit, slot)| {
                    let count = slot.check_below(level - 1, number << BITS | digit as i64, slab);
                    let is_occupied = ring.occupied[digit / 64] >> (digit % 64) & 1 == 1;
                    assert_eq!(is_occupied, count > 0, "a bit tells whether its slot is occupied");
                    count
                });
                let count = check_list(&ring.backlog, level, number, slab) + count.sum::<usize>();
                assert_ne!(count, 0, "an empty ring is closed");
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
    assert!(count <= list.arrivals() as usize, "arrivals are no fewer than entries");
    assert!(level == 0 || count <= ((TOP + 1 - level) * CROWD) as usize, "a list of {count} is opened");
    count
}
