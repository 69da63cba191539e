//! Remembered ids. The oldest expire first.

use super::{
    hashed::{HashedId, IdMap},
    state::TopicAt,
};
use dwell_core::Timestamp;
use std::collections::VecDeque;

/// What is known about an id in a topic.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Content hash, if the sender chose the id.
    pub(super) content: Option<u128>,
    /// Due time, if the message was pending.
    pub(super) due: Option<Timestamp>,
    /// How many sends to another broker are not known to have succeeded, if none is known to. Of a
    /// name, those that began one after the other; of all entries of a message, their names.
    pub(super) sending: u32,
}

impl Known {
    pub(super) fn new(content: Option<u128>, due: Option<Timestamp>) -> Self {
        Self { content, due, sending: 0 }
    }
}

/// A bounded record of the ids of messages that have fired. Pending entries are not part of it, and
/// never expire.
pub(super) struct Ids {
    capacity: usize,
    /// Ids by topic.
    known: Vec<IdMap<(u64, Known)>>,
    /// Number of ids in `known`.
    len: usize,
    /// Ids from old to new. An entry is obsolete if its generation differs from that in `known`.
    order: VecDeque<(u64, TopicAt, HashedId)>,
    generation: u64,
}

impl Ids {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, known: Vec::new(), len: 0, order: VecDeque::new(), generation: 0 }
    }

    pub(super) fn get(&self, topic: TopicAt, id: &HashedId) -> Option<Known> {
        self.known.get(topic.0)?.get(id).map(|(_, known)| *known)
    }

    /// Remembers an id. A known content hash is kept if the new one is missing.
    pub(super) fn remember(&mut self, topic: TopicAt, id: HashedId, known: Known) {
        if self.capacity == 0 {
            return;
        }
        if self.known.len() <= topic.0 {
            self.known.resize_with(topic.0 + 1, IdMap::default);
        }
        self.generation += 1;
        self.order.push_back((self.generation, topic, id.clone()));
        match self.known[topic.0].get_mut(&id) {
            Some((generation, old)) => {
                *generation = self.generation;
                *old = Known { content: known.content.or(old.content), ..known };
            }
            None => {
                self.known[topic.0].insert(id, (self.generation, known));
                self.len += 1;
            }
        }
        self.forget();
    }

    /// Removes one id before it expires.
    pub(super) fn remove(&mut self, topic: TopicAt, id: HashedId) {
        let Some(known) = self.known.get_mut(topic.0) else { return };
        self.len -= usize::from(known.remove_if(id, |_| true).is_some());
    }

    fn forget(&mut self) {
        while self.len > self.capacity {
            let Some((generation, topic, id)) = self.order.pop_front() else { break };
            let forgotten = self.known[topic.0].remove_if(id, |(current, _)| *current == generation);
            self.len -= usize::from(forgotten.is_some());
        }
        if self.order.len() > self.capacity.saturating_mul(2) {
            let known = &self.known;
            self.order.retain(|(generation, topic, id)| {
                known[topic.0].get(id).is_some_and(|(current, _)| current == generation)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::hashed::IdHasher, *};

    const TOPIC: TopicAt = TopicAt(0);

    struct Remembered(Ids, IdHasher);

    impl Remembered {
        fn new(capacity: usize) -> Self {
            Self(Ids::new(capacity), IdHasher::default())
        }

        fn remember(&mut self, id: &str, content: Option<u128>) {
            self.0.remember(TOPIC, self.1.of(&id.into()), Known::new(content, None));
        }

        fn content(&self, topic: TopicAt, id: &str) -> Option<u128> {
            self.0.get(topic, &self.1.of(&id.into())).and_then(|known| known.content)
        }
    }

    #[test]
    fn the_oldest_ids_expire_first() {
        let mut ids = Remembered::new(2);
        ids.remember("a", Some(1));
        ids.remember("b", Some(2));
        ids.remember("a", Some(3));
        ids.remember("c", Some(4));
        assert_eq!(["a", "b", "c"].map(|id| ids.content(TOPIC, id)), [Some(3), None, Some(4)]);
    }

    #[test]
    fn remembering_one_id_repeatedly_expires_no_other() {
        let mut ids = Remembered::new(2);
        ids.remember("a", Some(1));
        for n in 0..1000 {
            ids.remember("b", Some(n));
        }
        assert_eq!((ids.content(TOPIC, "a"), ids.content(TOPIC, "b")), (Some(1), Some(999)));
        assert!(ids.0.order.len() <= 5, "{}", ids.0.order.len());
    }

    #[test]
    fn a_chosen_id_keeps_its_content_after_firing() {
        let mut ids = Remembered::new(2);
        ids.remember("a", Some(1));
        ids.remember("a", None);
        assert_eq!(ids.content(TOPIC, "a"), Some(1));
    }

    #[test]
    fn topics_do_not_share_ids() {
        let mut ids = Remembered::new(2);
        ids.remember("a", Some(1));
        assert_eq!(ids.content(TopicAt(1), "a"), None);
        let mut none = Remembered::new(0);
        none.remember("a", Some(1));
        assert_eq!(none.content(TOPIC, "a"), None);
    }
}
