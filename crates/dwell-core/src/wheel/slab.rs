//! Storage of the entries, in chunks of a fixed size. Growing copies nothing, and the memory of a
//! burst is released.

use std::{mem, num::NonZeroU32};

/// End of a list; not an index.
pub(super) const NONE: u32 = u32::MAX;

/// A chunk has 2^14 seats. With ten million entries, the headers of all chunks still fit into the
/// nearest cache.
const CHUNK_BITS: u32 = 14;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (u32::BITS - CHUNK_BITS);

/// An empty chunk of at most this many entries keeps its memory, so that a wheel that alternates
/// between no and few entries does not allocate each time.
const KEPT: usize = 64;

/// Identifies a pending entry of one wheel. After the entry was popped or cancelled, its key never
/// matches again. Do not use it with another wheel, where it may match an unrelated entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    index: u32,
    generation: NonZeroU32,
}

impl Key {
    pub(super) fn index(self) -> u32 {
        self.index
    }
}

/// A pending entry, and its neighbours in the list.
pub(super) struct Entry<T> {
    pub(super) due: i64,
    pub(super) value: T,
    pub(super) previous: u32,
    pub(super) next: u32,
    generation: NonZeroU32,
}

/// A place for an entry. The niche of the generation marks a free seat, so a seat is no larger than
/// its entry.
enum Seat<T> {
    Free { next: u32 },
    Taken(Entry<T>),
}

struct Chunk<T> {
    /// Up to `CHUNK` seats. Empty after the memory was released.
    seats: Vec<Seat<T>>,
    /// First free seat in `seats`.
    free: u32,
    taken: u32,
    /// Last used generation. It only grows, even after the memory was released, so that old keys
    /// never match.
    generation: u32,
}

impl<T> Chunk<T> {
    const NEW: Self = Self { seats: Vec::new(), free: NONE, taken: 0, generation: 0 };

    /// Whether the chunk has used all its generations and takes no more entries.
    fn is_retired(&self) -> bool {
        self.generation == u32::MAX
    }

    fn has_room(&self) -> bool {
        (self.free != NONE || self.seats.len() < CHUNK) && !self.is_retired()
    }

    /// Adds an entry. The chunk must have room.
    fn insert(&mut self, due: i64, value: T) -> (u32, NonZeroU32) {
        self.generation += 1;
        self.taken += 1;
        let generation = NonZeroU32::new(self.generation).expect("a generation is at least one");
        let seat = Seat::Taken(Entry { due, value, previous: NONE, next: NONE, generation });
        if self.free == NONE {
            self.seats.push(seat);
            return (self.seats.len() as u32 - 1, generation);
        }
        let offset = self.free;
        match mem::replace(&mut self.seats[offset as usize], seat) {
            Seat::Free { next } => self.free = next,
            Seat::Taken(_) => unreachable!("the free list leads to a taken seat"),
        }
        (offset, generation)
    }

    fn remove(&mut self, offset: usize) -> Entry<T> {
        match mem::replace(&mut self.seats[offset], Seat::Free { next: self.free }) {
            Seat::Taken(entry) => {
                self.free = offset as u32;
                self.taken -= 1;
                entry
            }
            Seat::Free { .. } => unreachable!("a list leads to a free seat"),
        }
    }

    /// Removes all seats and returns their memory.
    fn release(&mut self) -> Vec<Seat<T>> {
        self.free = NONE;
        self.taken = 0;
        mem::take(&mut self.seats)
    }
}

/// All entries of a wheel, by index.
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with memory and room. The last one takes the next entry.
    open: Vec<u32>,
    /// Chunks whose memory was released. They are used once no other chunk has room.
    released: Vec<u32>,
    /// Number of chunks with memory.
    resident: usize,
    len: usize,
    /// Number of accesses to entries. Tests use it to prove that calls are bounded.
    #[cfg(test)]
    pub(super) touched: std::cell::Cell<usize>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            open: Vec::new(),
            released: Vec::new(),
            resident: 0,
            len: 0,
            #[cfg(test)]
            touched: std::cell::Cell::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, due: i64, value: T) -> Key {
        let number = self.open.last().copied().unwrap_or_else(|| self.open_chunk());
        let chunk = &mut self.chunks[number as usize];
        let (offset, generation) = chunk.insert(due, value);
        if !chunk.has_room() {
            self.open.pop();
        }
        self.len += 1;
        Key { index: number << CHUNK_BITS | offset, generation }
    }

    /// Returns the index of a pending entry, or `None` if the key is stale.
    pub(super) fn find(&self, key: Key) -> Option<u32> {
        let (chunk, offset) = split(key.index);
        match self.chunks.get(chunk)?.seats.get(offset)? {
            Seat::Taken(entry) if entry.generation == key.generation => Some(key.index),
            _ => None,
        }
    }

    pub(super) fn entry(&self, index: u32) -> &Entry<T> {
        #[cfg(test)]
        self.touched.update(|touched| touched + 1);
        let (chunk, offset) = split(index);
        match &self.chunks[chunk].seats[offset] {
            Seat::Taken(entry) => entry,
            Seat::Free { .. } => unreachable!("a list leads to a free seat"),
        }
    }

    pub(super) fn entry_mut(&mut self, index: u32) -> &mut Entry<T> {
        #[cfg(test)]
        self.touched.update(|touched| touched + 1);
        let (chunk, offset) = split(index);
        match &mut self.chunks[chunk].seats[offset] {
            Seat::Taken(entry) => entry,
            Seat::Free { .. } => unreachable!("a list leads to a free seat"),
        }
    }

    /// Removes an entry that is in no list.
    pub(super) fn remove(&mut self, index: u32) -> Entry<T> {
        let (number, offset) = split(index);
        let chunk = &mut self.chunks[number];
        let had_room = chunk.has_room();
        let entry = chunk.remove(offset);
        self.len -= 1;
        if !had_room && chunk.has_room() {
            self.open.push(number as u32);
        }
        if chunk.taken == 0 {
            self.emptied(number);
        }
        entry
    }

    /// Iterates over all entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Entry<T>)> {
        self.chunks.iter().zip(0u32..).flat_map(|(chunk, number)| {
            chunk.seats.iter().zip(0u32..).filter_map(move |(seat, offset)| match seat {
                Seat::Taken(entry) => {
                    Some((Key { index: number << CHUNK_BITS | offset, generation: entry.generation }, entry))
                }
                Seat::Free { .. } => None,
            })
        })
    }

    /// Removes all entries, in no particular order, and releases the memory.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry<T>> + use<T> {
        self.open.clear();
        self.released.clear();
        self.resident = 0;
        self.len = 0;
        let mut drained = Vec::with_capacity(self.chunks.len());
        for (chunk, number) in self.chunks.iter_mut().zip(0u32..) {
            drained.push(chunk.release());
            if !chunk.is_retired() {
                self.released.push(number);
            }
        }
        drained.into_iter().flatten().filter_map(|seat| match seat {
            Seat::Taken(entry) => Some(entry),
            Seat::Free { .. } => None,
        })
    }

    /// Returns the number of allocated bytes.
    pub(super) fn memory(&self) -> usize {
        let seats: usize = self.chunks.iter().map(|chunk| chunk.seats.capacity()).sum();
        seats * size_of::<Seat<T>>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + (self.open.capacity() + self.released.capacity()) * size_of::<u32>()
    }

    /// Opens a released chunk, or a new one. Called if no chunk has room.
    fn open_chunk(&mut self) -> u32 {
        let number = self.released.pop().unwrap_or_else(|| {
            // The very last index is `NONE`, so the last chunk is never used.
            assert!(self.chunks.len() < CHUNKS - 1, "a wheel holds at most {} entries", (CHUNKS - 1) * CHUNK);
            self.chunks.push(Chunk::NEW);
            self.chunks.len() as u32 - 1
        });
        // A small wheel grows gradually, a large one by whole chunks.
        if self.len >= CHUNK / 2 {
            self.chunks[number as usize].seats.reserve_exact(CHUNK);
        }
        self.resident += 1;
        self.open.push(number);
        number
    }

    /// Releases the memory that exceeds two chunks of room, and all but a few seats once nothing is
    /// pending. The rest is kept, so that a wheel with a slightly varying length does not allocate
    /// each time.
    fn emptied(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        chunk.seats.clear();
        chunk.free = NONE;
        if chunk.is_retired() || self.resident * CHUNK - self.len > 2 * CHUNK {
            self.give_back(number);
        }
        if self.len == 0 {
            let is_large = |number: &usize| self.chunks[*number].seats.capacity() > KEPT;
            let large: Vec<usize> = self.open.iter().map(|&open| open as usize).filter(is_large).collect();
            large.into_iter().for_each(|number| self.give_back(number));
        }
    }

    fn give_back(&mut self, number: usize) {
        let chunk = &mut self.chunks[number];
        drop(chunk.release());
        self.resident -= 1;
        self.open.retain(|&open| open as usize != number);
        if !chunk.is_retired() {
            self.released.push(number as u32);
        }
    }
}

fn split(index: u32) -> (usize, usize) {
    ((index >> CHUNK_BITS) as usize, index as usize & (CHUNK - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_no_larger_than_its_entry() {
        assert_eq!(size_of::<Seat<u64>>(), 32);
        assert_eq!(size_of::<Seat<Box<str>>>(), 40);
    }

    #[test]
    fn a_seat_is_reused_under_another_key() {
        let mut slab = Slab::new();
        let old = slab.insert(1, 'a');
        slab.remove(old.index());
        let new = slab.insert(1, 'b');
        assert_eq!(new.index(), old.index());
        assert_eq!(slab.find(old), None);
        assert_eq!(slab.find(new), Some(new.index()));
    }

    #[test]
    fn a_key_stays_stale_after_its_memory_is_reused() {
        let mut slab = Slab::new();
        let old: Vec<Key> = (0..3 * CHUNK).map(|value| slab.insert(0, value)).collect();
        for key in &old {
            slab.remove(key.index());
        }
        assert_eq!(slab.resident, 0);
        let new: Vec<Key> = (0..3 * CHUNK).map(|value| slab.insert(0, value)).collect();
        assert!(old.iter().all(|&key| slab.find(key).is_none()));
        assert!(new.iter().all(|&key| slab.find(key).is_some()));
    }

    #[test]
    fn a_chunk_out_of_generations_is_retired() {
        let mut slab = Slab::new();
        let first = slab.insert(0, 'a');
        slab.chunks[0].generation = u32::MAX - 1;
        let last = slab.insert(0, 'b');
        let beyond = slab.insert(0, 'c');
        assert_eq!(split(last.index()), (0, 1));
        assert_eq!(split(beyond.index()), (1, 0));
        slab.remove(first.index());
        slab.remove(last.index());
        assert_eq!(slab.chunks[0].seats.capacity(), 0);
        slab.remove(beyond.index());
        drop(slab.drain());
        assert_eq!(slab.released, [1], "a retired chunk stays retired after a drain");
        assert_eq!(slab.find(last), None);
    }

    #[test]
    fn memory_is_kept_while_the_length_varies_around_a_chunk() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..CHUNK).map(|value| slab.insert(0, value)).collect();
        let beyond = slab.insert(0, 0);
        slab.remove(beyond.index());
        let memory = slab.memory();
        assert_eq!(slab.resident, 2);
        slab.remove(keys[0].index());
        slab.insert(0, 0);
        slab.insert(0, 0);
        assert_eq!(slab.memory(), memory);
    }

    #[test]
    fn an_empty_chunk_is_released_while_others_have_room() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..4 * CHUNK).map(|value| slab.insert(0, value)).collect();
        for key in &keys[CHUNK..] {
            slab.remove(key.index());
        }
        assert_eq!(slab.len(), CHUNK);
        assert_eq!(slab.resident, 3, "two chunks of room are kept");
        assert!(keys[..CHUNK].iter().all(|&key| slab.find(key).is_some()));
    }
}
