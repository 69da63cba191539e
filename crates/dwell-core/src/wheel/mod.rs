//! A timing wheel: values that wait, each for its due time, by the millisecond.
//!
//! A plain data structure. It has no thread and reads no clock: the caller brings the time, holds the lock, and sleeps.
//!
//! # The picture
//!
//! ```text
//! blocks    │ now … 50 days │ the next 50 days │   …   │ in ten years │     an ordered map, 2^32 ms each
//!               │                  │                       │
//!               │                  └ list                  └ list
//! ring      │ 4.7 h │ 4.7 h │ …                                            256 slots of 2^24 ms
//!               │       └ list
//! ring      │ 65 s │ 65 s │ 65 s │ …                                       256 slots of 2^16 ms
//!               │      │      └ list
//!               │      └ ring …
//! ring      │ 256 ms │ 256 ms │ …                                          256 slots of 2^8 ms
//!               │         └ list
//! ring      │ 1 ms │ 1 ms │ …                                              256 slots of 1 ms
//!              └ list: what is due in this millisecond, first come first
//! ```
//!
//! A *slot* is a span of time. It holds a *list* of all that falls into it, in the order of arrival and whatever the due
//! times, until either of two things happens; then it is *opened*, into a *ring* of 256 finer slots.
//!
//! * It is crowded: thousands have arrived in its list. The list is put aside as the *backlog* of the new ring, as it is,
//!   and whatever comes from then on goes to the finer slots.
//! * It is the first that is not empty, and somebody wants to know what comes first. A list of a few is searched. A longer
//!   one is opened, and a backlog is *dealt out* to the finer slots, from front to back, before what came later.
//!
//! So inserting and cancelling never move any other entry, and an entry is dealt out, one level down each time, only when
//! its time is near: four times in its life at most, and less where traffic is dense, since then the finer slots are there
//! before the entries come. What is cancelled long before it is due never moves at all. Once a ring is empty it is closed,
//! and its memory goes back.
//!
//! Unlike the classic wheel this one has no hand that passes over the slots. Where an entry is depends on its due time
//! and on what else is pending, never on the time it is now. So there is nothing to turn while nothing is due, a clock
//! that jumps ten years ahead skips what is empty by a few bitmaps, and for a clock that is set back there is no "behind".
//! Near and far differ only in the number of blocks: there is no moving from the one to the other either.
//!
//! # Invariants
//!
//! 1. Every entry is in one list: that of the finest slot there is for its due time, or a backlog above that.
//! 2. Of two entries of one millisecond the one that came first is before the other in the same list, or is in a backlog
//!    above. An insert appends to the finest list, a backlog only ever takes what came before all below it, and dealing
//!    out keeps the order: so they come out in the order of arrival, without being numbered.
//! 3. A list above the level of milliseconds stays short: some thousands, or a small part of all there ever were. This
//!    bounds every call: it deals out at most one such list of each level for which it has nothing to show yet, however
//!    many millions are pending or due.
//! 4. A ring's bit is set if and only if that slot has an entry below it. No ring is empty, and no block.
//! 5. Nothing is due before `earliest`; if `is_exact`, something is due right then. Only taking out the earliest entry
//!    makes it inexact; the next question, or an arrival that is no later, makes it exact again.
//! 6. A generation is given once for each index. A chunk of the slab that runs out of them takes no more entries.
//!
//! # Who may rely on what
//!
//! * Never early: [`pop_due`](Wheel::pop_due) gives only what is due at the `now` of that very call, however that
//!   compares with earlier calls. Never lost: what was inserted stays until popped, cancelled, drained or cleared.
//! * In order: by due time, and by arrival within a millisecond, within a call; and over calls, unless something with an
//!   earlier due time was added in between. Rescheduling is arriving anew.
//! * [`next_due`](Wheel::next_due) is exact: whoever sleeps until then finds something due, unless it was cancelled
//!   meanwhile, and is not late. Whoever inserts or reschedules while another sleeps must see to it that the sleeper
//!   wakes if the answer has become earlier. The wheel tells nobody.
//! * Every due time of `i64` is as good as any other, the first and the last included.
//! * Insert, cancel and reschedule take constant time for what is due within some 50 days, and beyond that time
//!   logarithmic in the number of blocks, of which ten years are 74.
//! * Memory: 32 bytes for an entry with a value of 8 bytes, plus a ring of 4 KiB for every crowded slot, plus those in
//!   front. Chunks of entries are given back as they become empty, so an idle wheel after a burst is small. A large value
//!   should be boxed: a free seat is as large as a taken one.
//! * Nothing here fails. [`insert`](Wheel::insert) panics if four billion entries are pending; that is the only panic. A
//!   value that panics in its own `drop` leaves the wheel in order.

mod list;
#[cfg(test)]
mod model;
mod slab;
mod slot;
#[cfg(test)]
mod tests;

pub use slab::Key;

use crate::Timestamp;
use slab::Slab;
use slot::{Batch, Slot, block};
use std::{collections::BTreeMap, fmt};

/// Values that wait for their due times. See the [module](self) for how, and for what a caller may rely on.
///
/// ```
/// use dwell_core::{Timestamp, wheel::Wheel};
///
/// let mut wheel = Wheel::new();
/// wheel.insert(Timestamp(2_000), "second");
/// let third = wheel.insert(Timestamp(3_000), "third");
/// wheel.insert(Timestamp(1_000), "first");
///
/// assert_eq!(wheel.next_due(), Some(Timestamp(1_000)));
/// assert_eq!(wheel.cancel(third), Some("third"));
/// assert_eq!(wheel.cancel(third), None);
///
/// let mut due = Vec::new();
/// wheel.pop_due(Timestamp(1_999), 100, &mut due);
/// assert_eq!(due, [(Timestamp(1_000), "first")]);
/// assert_eq!(wheel.next_due(), Some(Timestamp(2_000)));
/// ```
pub struct Wheel<T> {
    slab: Slab<T>,
    /// Every entry is in the block of its due time. No block is empty.
    blocks: BTreeMap<i32, Slot>,
    /// Nothing is due before this.
    earliest: i64,
    /// Whether something is due right then.
    is_exact: bool,
}

impl<T> Wheel<T> {
    /// Nothing pending, nothing allocated.
    pub const fn new() -> Self {
        Self { slab: Slab::new(), blocks: BTreeMap::new(), earliest: i64::MAX, is_exact: false }
    }

    /// Adds a value, behind all others that are due in the same millisecond. If `due` has passed, it is due at once.
    ///
    /// # Panics
    ///
    /// If some four billion entries are pending.
    pub fn insert(&mut self, due: Timestamp, value: T) -> Key {
        let key = self.slab.insert(due.0, value);
        self.link(key.index(), due.0);
        key
    }

    /// Takes an entry out before it is popped; none if it is not pending any more.
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let index = self.slab.find(key)?;
        self.unlink(index);
        Some(self.slab.remove(index).value)
    }

    /// Gives an entry another due time, behind all others that are due in the same millisecond. The key stays the same.
    /// False if it is not pending any more.
    pub fn reschedule(&mut self, key: Key, due: Timestamp) -> bool {
        let Some(index) = self.slab.find(key) else { return false };
        self.unlink(index);
        self.slab.entry_mut(index).due = due.0;
        self.link(index, due.0);
        true
    }

    /// A pending entry.
    pub fn get(&self, key: Key) -> Option<(Timestamp, &T)> {
        let entry = self.slab.entry(self.slab.find(key)?);
        Some((Timestamp(entry.due), &entry.value))
    }

    /// A pending entry, whose value may be changed.
    pub fn get_mut(&mut self, key: Key) -> Option<(Timestamp, &mut T)> {
        let index = self.slab.find(key)?;
        let entry = self.slab.entry_mut(index);
        Some((Timestamp(entry.due), &mut entry.value))
    }

    /// The exact due time of what comes first. It is remembered, so asking again costs nothing; finding it anew may mean
    /// dealing out the first slots, which is work that popping them needs anyway.
    pub fn next_due(&mut self) -> Option<Timestamp> {
        if !self.is_exact {
            let mut first = self.blocks.first_entry()?;
            self.earliest = first.get_mut().earliest(&mut self.slab);
            self.is_exact = true;
        }
        Some(Timestamp(self.earliest))
    }

    /// Moves what is due at `now` to the end of `into`, in order, but at most `max` entries. The work is in proportion to
    /// `max`, however much more is due: a caller who holds a lock pops a piece at a time, for as long as
    /// [`next_due`](Self::next_due) is not after `now`.
    pub fn pop_due(&mut self, now: Timestamp, max: usize, into: &mut Vec<(Timestamp, T)>) {
        if self.is_empty() || self.earliest > now.0 {
            return;
        }
        let before = into.len();
        let mut batch = Batch { now: now.0, limit: before.saturating_add(max), into };
        while let Some(mut first) = self.blocks.first_entry()
            && first.get_mut().pop(&mut batch, &mut self.slab)
        {
            first.remove();
        }
        if into.len() > before {
            self.is_exact = false;
        }
    }

    /// How many are pending, whether due or not.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that is pending, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Timestamp, &T)> {
        self.slab.iter().map(|(key, entry)| (key, Timestamp(entry.due), &entry.value))
    }

    /// Takes out all that is pending, at once, and gives it in no order. Their keys never match again.
    pub fn drain(&mut self) -> impl Iterator<Item = (Timestamp, T)> + use<T> {
        self.blocks.clear();
        self.is_exact = false;
        self.slab.drain().map(|entry| (Timestamp(entry.due), entry.value))
    }

    /// Drops all that is pending. Their keys never match again.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Bytes allocated, beside what the values themselves point to. Looks at every ring: for figures, not for every call.
    pub fn memory(&self) -> usize {
        // A node of the map has room for eleven, and is about half full at worst.
        let nodes = self.blocks.len().div_ceil(6);
        let blocks = nodes * 11 * size_of::<(i32, Slot)>();
        self.slab.memory() + blocks + self.blocks.values().map(Slot::memory).sum::<usize>()
    }

    /// Puts an entry that is in no list into the one of its due time.
    fn link(&mut self, index: u32, due: i64) {
        if due <= self.earliest {
            self.earliest = due;
            self.is_exact = true;
        }
        self.blocks.entry(block(due)).or_insert(Slot::EMPTY).insert(index, due, &mut self.slab);
    }

    /// Takes an entry out of its list.
    fn unlink(&mut self, index: u32) {
        let due = self.slab.entry(index).due;
        if due == self.earliest {
            self.is_exact = false;
        }
        if list::unlink(index, &mut self.slab) {
            return;
        }
        let block = block(due);
        let slot = self.blocks.get_mut(&block).expect("an entry is in the block of its due time");
        if slot.remove(index, due, &mut self.slab) {
            self.blocks.remove(&block);
        }
    }
}

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel").field("pending", &self.len()).finish_non_exhaustive()
    }
}
