//! A timing wheel: values that are pending until their due time, with a resolution of one
//! millisecond.
//!
//! It is a plain data structure without a thread and without a clock. The caller supplies the time,
//! holds the lock and sleeps.
//!
//! # Structure
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
//!              └ list: entries that are due in this millisecond, in order of arrival
//! ```
//!
//! A *slot* is a span of time. It starts as a *list* of all entries that fall into it, in order of
//! arrival, whatever their due times are. In two cases it is *opened*, which means that it becomes
//! a *ring* of 256 finer slots:
//!
//! * It is crowded: thousands of entries have been added to its list. The list becomes the
//!   *backlog* of the new ring without a change, and later entries go to the finer slots.
//! * It is the first slot with entries, and a caller requests the earliest one. A short list is
//!   searched. A longer one is opened, and its backlog is *dealt* to the finer slots, from front to
//!   back, before the later entries.
//!
//! Inserting and cancelling therefore never move another entry. An entry is dealt, one level down
//! each time, only shortly before it is due: at most four times, and less often in dense traffic,
//! where the finer slots exist before the entries arrive. An entry that is cancelled long before it
//! is due never moves. An empty ring is closed, and its memory is released.
//!
//! Unlike the classic wheel, this one has no hand that passes over the slots. The position of an
//! entry depends on its due time and on the other pending entries, never on the current time. This
//! has three consequences:
//!
//! * Nothing has to turn while no entry is due.
//! * A clock that jumps ten years ahead skips the empty slots with a few bitmaps.
//! * A clock that is set back needs no special case.
//!
//! Near and far entries differ only in their block, and never move from one block to another.
//!
//! # Invariants
//!
//! 1. Every entry is in one list: that of the finest existing slot for its due time, or a backlog
//!    above that slot.
//! 2. Of two entries for the same millisecond, the one that arrived first comes first in the same
//!    list, or is in a backlog above it. This holds because an insert appends to the finest list, a
//!    backlog only takes entries that arrived before all entries below it, and dealing keeps the
//!    order. Entries therefore come out in order of arrival, without sequence numbers.
//! 3. A list above the millisecond level stays short: some thousands of entries, or a small
//!    fraction of all entries. This bounds every call. It deals at most one such list per level
//!    without returning an entry, however many millions are pending or due.
//! 4. The bit of a slot is set in its ring if and only if there is an entry in the slot. No ring
//!    and no block is empty.
//! 5. Nothing is due before `earliest`. If `is_exact` is set, an entry is due at `earliest`. Only
//!    removing the earliest entry clears `is_exact`. The next call of `next_due` sets it again, and
//!    so does inserting an entry that is not later.
//! 6. A generation is used once per chunk. A chunk that has used all of them takes no more entries.
//!
//! # Guarantees
//!
//! * Never early: [`pop_due`](Wheel::pop_due) returns only entries that are due at the `now` of
//!   this call, independently of earlier calls. Never lost: an entry stays until it is popped,
//!   cancelled, drained or cleared.
//! * Ordered: one call returns entries by due time, and by arrival within a millisecond. So do
//!   several calls, unless an entry with an earlier due time is added in between. Rescheduling
//!   counts as a new arrival.
//! * [`next_due`](Wheel::next_due) is exact: a caller that sleeps until then finds a due entry and
//!   is not late, unless the entry was cancelled meanwhile. A thread that inserts or reschedules
//!   while another one sleeps has to wake the sleeper if `next_due` has become earlier. The wheel
//!   notifies no one.
//! * All due times of `i64` are supported, including the first and the last.
//! * Insert, cancel and reschedule take constant time for entries that are due within about 50
//!   days. Beyond that, the time is logarithmic in the number of blocks; ten years are 74 blocks.
//! * Memory: 32 bytes for an entry with a value of 8 bytes, plus 4 KiB for every ring. There is a
//!   ring for each crowded slot and for the first slots. Empty chunks of entries are released, so
//!   an idle wheel is small after a burst. Box large values, because a free seat is as large as a
//!   taken one.
//! * Nothing fails. [`insert`](Wheel::insert) panics if four billion entries are pending; this is
//!   the only panic. A value that panics in its own `drop` leaves the wheel intact.

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

/// Pending values with their due times. See the [module](self) for the structure and the
/// guarantees.
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
    /// No entry is due before this time.
    earliest: i64,
    /// Whether an entry is due at `earliest`.
    is_exact: bool,
}

impl<T> Wheel<T> {
    /// Creates an empty wheel without allocating.
    pub const fn new() -> Self {
        Self { slab: Slab::new(), blocks: BTreeMap::new(), earliest: i64::MAX, is_exact: false }
    }

    /// Adds a value, after all entries that are due in the same millisecond. If `due` has passed,
    /// it is due immediately.
    ///
    /// # Panics
    ///
    /// If about four billion entries are pending.
    pub fn insert(&mut self, due: Timestamp, value: T) -> Key {
        let key = self.slab.insert(due.0, value);
        self.link(key.index(), due.0);
        key
    }

    /// Removes an entry before it is popped. `None` if it is not pending any more.
    pub fn cancel(&mut self, key: Key) -> Option<T> {
        let index = self.slab.find(key)?;
        self.unlink(index);
        Some(self.slab.remove(index).value)
    }

    /// Gives an entry a new due time, after all entries that are due in the same millisecond. The
    /// key stays valid. Returns `false` if the entry is not pending any more.
    pub fn reschedule(&mut self, key: Key, due: Timestamp) -> bool {
        let Some(index) = self.slab.find(key) else { return false };
        self.unlink(index);
        self.slab.entry_mut(index).due = due.0;
        self.link(index, due.0);
        true
    }

    /// Returns a pending entry.
    pub fn get(&self, key: Key) -> Option<(Timestamp, &T)> {
        let entry = self.slab.entry(self.slab.find(key)?);
        Some((Timestamp(entry.due), &entry.value))
    }

    /// Returns a pending entry with a mutable value.
    pub fn get_mut(&mut self, key: Key) -> Option<(Timestamp, &mut T)> {
        let index = self.slab.find(key)?;
        let entry = self.slab.entry_mut(index);
        Some((Timestamp(entry.due), &mut entry.value))
    }

    /// Returns the exact due time of the first entry. The result is cached, so a repeated call is
    /// free. Computing it may deal the first slots, which popping their entries requires anyway.
    pub fn next_due(&mut self) -> Option<Timestamp> {
        if !self.is_exact {
            let mut first = self.blocks.first_entry()?;
            self.earliest = first.get_mut().earliest(&mut self.slab);
            self.is_exact = true;
        }
        Some(Timestamp(self.earliest))
    }

    /// Moves due entries to the end of `into`, in order, up to `max` entries. The work is
    /// proportional to `max`, however many entries are due. A caller that holds a lock can pop in
    /// small batches, as long as [`next_due`](Self::next_due) is not after `now`.
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

    /// Returns the number of pending entries, due or not.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no entry is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all pending entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Timestamp, &T)> {
        self.slab.iter().map(|(key, entry)| (key, Timestamp(entry.due), &entry.value))
    }

    /// Removes all pending entries at once, and returns them in no particular order. Their keys
    /// never match again.
    pub fn drain(&mut self) -> impl Iterator<Item = (Timestamp, T)> + use<T> {
        self.blocks.clear();
        self.is_exact = false;
        self.slab.drain().map(|entry| (Timestamp(entry.due), entry.value))
    }

    /// Drops all pending entries. Their keys never match again.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Returns the number of allocated bytes, without those that the values point to. Visits every
    /// ring, so use it for statistics only.
    pub fn memory(&self) -> usize {
        // A node of the map has room for eleven blocks, and is at least about half full.
        let nodes = self.blocks.len().div_ceil(6);
        let blocks = nodes * 11 * size_of::<(i32, Slot)>();
        self.slab.memory() + blocks + self.blocks.values().map(Slot::memory).sum::<usize>()
    }

    /// Adds an entry, which is in no list, to the list of its due time.
    fn link(&mut self, index: u32, due: i64) {
        if due <= self.earliest {
            self.earliest = due;
            self.is_exact = true;
        }
        self.blocks.entry(block(due)).or_insert(Slot::EMPTY).insert(index, due, &mut self.slab);
    }

    /// Removes an entry from its list.
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
