//! Hashed ids, and maps by id without long pauses.
//!
//! An id is hashed once, when its message arrives, and is then used in several maps. A single map
//! that grows at a million ids would move all of them at once, under the lock. Many small maps move
//! their shares at different times.

use dwell_core::{MessageId, Text};
use std::{
    collections::{
        HashMap,
        hash_map::{Entry, RandomState},
    },
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::Arc,
};

/// Hashes ids. Its keys are random, because clients might choose colliding ids.
#[derive(Default)]
pub(super) struct IdHasher(RandomState);

impl IdHasher {
    pub(super) fn of(&self, id: &Text) -> HashedId {
        HashedId { hash: self.0.hash_one(id), id: id.clone() }
    }

    pub(super) fn of_message(&self, id: &MessageId) -> HashedId {
        self.of(&Text::from(&id.0))
    }

    /// Returns a key for all entries of a message. No entry has it as its name, whatever the id
    /// contains, because a name ends in a destination.
    pub(super) fn of_all_entries(&self, id: &MessageId) -> HashedId {
        self.of(&[&*id.0, "@"].concat().into())
    }
}

#[derive(Clone)]
pub(super) struct HashedId {
    hash: u64,
    pub(super) id: Text,
}

impl PartialEq for HashedId {
    fn eq(&self, other: &Self) -> bool {
        // Usually both share one text, which then need not be loaded for the comparison.
        self.hash == other.hash && (Arc::ptr_eq(&self.id, &other.id) || self.id == other.id)
    }
}

impl Eq for HashedId {}

impl Hash for HashedId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Uses the hash of a [`HashedId`].
#[derive(Default)]
pub(super) struct GivenHash(u64);

impl Hasher for GivenHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.rotate_left(5) ^ number;
    }
}

const SHARDS: usize = 64;

/// A map by id. It is not iterable, because its order is random.
pub(super) struct IdMap<V>([HashMap<HashedId, V, BuildHasherDefault<GivenHash>>; SHARDS]);

impl<V> IdMap<V> {
    pub(super) fn get(&self, id: &HashedId) -> Option<&V> {
        self.0[shard(id)].get(id)
    }

    pub(super) fn get_mut(&mut self, id: &HashedId) -> Option<&mut V> {
        self.0[shard(id)].get_mut(id)
    }

    pub(super) fn insert(&mut self, id: HashedId, value: V) -> Option<V> {
        self.0[shard(&id)].insert(id, value)
    }

    /// Removes the value if `is_it` accepts it.
    pub(super) fn remove_if(&mut self, id: HashedId, is_it: impl FnOnce(&V) -> bool) -> Option<V> {
        match self.0[shard(&id)].entry(id) {
            Entry::Occupied(entry) if is_it(entry.get()) => Some(entry.remove()),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, id: &HashedId) -> Option<V> {
        self.0[shard(id)].remove(id)
    }
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| HashMap::default()))
    }
}

/// Uses bits in the middle, because a map uses those at both ends.
fn shard(id: &HashedId) -> usize {
    (id.hash >> 40) as usize % SHARDS
}
