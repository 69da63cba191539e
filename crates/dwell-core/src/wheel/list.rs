//! A list of entries in the order of their arrival, linked through the entries themselves.

use super::slab::{NONE, Slab};

/// A doubly linked list by index. Its entries know their neighbours but not their list, so one between two others is
/// taken out without touching it, and a list can be moved by copying it.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
    /// How many were added since it was empty: at least the number of its entries. Those taken out are not subtracted,
    /// because `unlink` does not come by here.
    arrivals: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE, arrivals: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// How many came since it was empty.
    pub(super) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// Whether this is the first or the last of its entries.
    pub(super) fn ends_with(&self, index: u32) -> bool {
        self.head == index || self.tail == index
    }

    /// The one that came first.
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

    /// Takes out any of its entries.
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

    /// Whether it has more than `count` entries, which is as many as this looks at.
    pub(super) fn is_longer_than<T>(&self, count: usize, slab: &Slab<T>) -> bool {
        self.indices(slab).nth(count).is_some()
    }

    /// Puts all of `newer` behind its own entries.
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

    /// Its entries, first come first.
    pub(super) fn indices<T>(&self, slab: &Slab<T>) -> impl Iterator<Item = u32> {
        let head = Some(self.head).filter(|&head| head != NONE);
        std::iter::successors(head, |&index| Some(slab.entry(index).next).filter(|&next| next != NONE))
    }
}

/// Takes an entry out from between two others, without its list; false if it is the first or the last of it.
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
