//! A list of entries in order of arrival, linked through the entries.

use super::slab::{NONE, Slab};

/// A doubly linked list of indices. Entries refer to their neighbours but not to their list. An
/// inner entry can therefore be removed without the list, and a list is moved by copying it.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
    /// Number of entries added since the list was last empty. It is an upper bound for the number
    /// of entries: removed entries are not subtracted, because `unlink` does not have the list.
    arrivals: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE, arrivals: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Returns the number of entries added since the list was last empty.
    pub(super) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// Whether this is the first or the last entry.
    pub(super) fn ends_with(&self, index: u32) -> bool {
        self.head == index || self.tail == index
    }

    /// Returns the first entry.
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    pub(super) fn push<T>(&mut self, index: u32, slab: &mut Slab<T>) {
        let entry = slab.entry_mut(index);
        entry.previous = self.tail;
        entry.next = NONE;
        match self.tail {
            NONE => self.head = index,
            tail => slab.entry_mut(tail).next = index,
        }
        self.tail = index;
        self.arrivals = self.arrivals.saturating_add(1);
    }

    /// Removes any entry of this list.
    pub(super) fn remove<T>(&mut self, index: u32, slab: &mut Slab<T>) {
        let entry = slab.entry(index);
        let (previous, next) = (entry.previous, entry.next);
        match previous {
            NONE => self.head = next,
            previous => slab.entry_mut(previous).next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => slab.entry_mut(next).previous = previous,
        }
        if self.is_empty() {
            self.arrivals = 0;
        }
    }

    /// Whether the list has more than `count` entries. Visits at most `count + 1` of them.
    pub(super) fn is_longer_than<T>(&self, count: usize, slab: &Slab<T>) -> bool {
        self.indices(slab).nth(count).is_some()
    }

    /// Appends all entries of `newer`.
    pub(super) fn append<T>(&mut self, newer: Self, slab: &mut Slab<T>) {
        if self.is_empty() {
            *self = newer;
        } else if !newer.is_empty() {
            slab.entry_mut(self.tail).next = newer.head;
            slab.entry_mut(newer.head).previous = self.tail;
            self.tail = newer.tail;
            self.arrivals = self.arrivals.saturating_add(newer.arrivals);
        }
    }

    /// Iterates over the entries in order of arrival.
    pub(super) fn indices<T>(&self, slab: &Slab<T>) -> impl Iterator<Item = u32> {
        let head = Some(self.head).filter(|&head| head != NONE);
        std::iter::successors(head, |&index| Some(slab.entry(index).next).filter(|&next| next != NONE))
    }
}

/// Removes an inner entry without its list. Returns `false` if the entry is the first or the last
/// one.
pub(super) fn unlink<T>(index: u32, slab: &mut Slab<T>) -> bool {
    let entry = slab.entry(index);
    let (previous, next) = (entry.previous, entry.next);
    if previous == NONE || next == NONE {
        return false;
    }
    slab.entry_mut(previous).next = next;
    slab.entry_mut(next).previous = previous;
    true
}
