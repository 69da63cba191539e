//! The ids that are remembered, oldest forgotten first.

use super::state::TopicAt;
use dwell_core::{Text, Timestamp};
use std::collections::{HashMap, VecDeque};

type Key = (TopicAt, Text);

/// What is known about an id of a topic.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// The hash of the content, if the sender chose the id.
    pub(super) content: Option<u128>,
    /// When it was due, if it waited.
    pub(super) due: Option<Timestamp>,
}

/// A bounded memory of ids that went on their way. What still waits is not here: it is never forgotten.
pub(super) struct Ids {
    capacity: usize,
    known: HashMap<Key, (u64, Known)>,
    /// From old to new. One whose generation is not that in `known` was remembered again since.
    order: VecDeque<(u64, Key)>,
    generation: u64,
}

impl Ids {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, known: HashMap::new(), order: VecDeque::new(), generation: 0 }
    }

    pub(super) fn get(&self, topic: TopicAt, id: &Text) -> Option<Known> {
        self.known.get(&(topic, id.clone())).map(|(_, known)| *known)
    }

    /// Remembers an id, in place of what was known about it.
    pub(super) fn remember(&mut self, topic: TopicAt, id: Text, known: Known) {
        if self.capacity == 0 {
            return;
        }
        self.generation += 1;
        let key = (topic, id);
        self.known.insert(key.clone(), (self.generation, known));
        self.order.push_back((self.generation, key));
        while self.known.len() > self.capacity {
            let Some((generation, key)) = self.order.pop_front() else { break };
            if self.is_current(generation, &key) {
                self.known.remove(&key);
            }
        }
        if self.order.len() > 2 * self.capacity {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|(generation, key)| self.is_current(*generation, key));
            self.order = order;
        }
    }

    fn is_current(&self, generation: u64, key: &Key) -> bool {
        self.known.get(key).is_some_and(|(current, _)| *current == generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicAt = TopicAt(0);

    fn remember(ids: &mut Ids, id: &str, content: u128) {
        ids.remember(TOPIC, id.into(), Known { content: Some(content), due: None });
    }

    fn content(ids: &Ids, id: &str) -> Option<u128> {
        ids.get(TOPIC, &id.into()).and_then(|known| known.content)
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_remembering_again_makes_young() {
        let mut ids = Ids::new(2);
        remember(&mut ids, "a", 1);
        remember(&mut ids, "b", 2);
        remember(&mut ids, "a", 3);
        remember(&mut ids, "c", 4);
        assert_eq!(["a", "b", "c"].map(|id| content(&ids, id)), [Some(3), None, Some(4)]);
    }

    #[test]
    fn remembering_one_id_for_ever_forgets_no_other_and_takes_no_room() {
        let mut ids = Ids::new(2);
        remember(&mut ids, "a", 1);
        for n in 0..1000 {
            remember(&mut ids, "b", n);
        }
        assert_eq!((content(&ids, "a"), content(&ids, "b")), (Some(1), Some(999)));
        assert!(ids.order.len() <= 5, "{}", ids.order.len());
    }

    #[test]
    fn topics_do_not_share_ids_and_a_memory_of_none_remembers_none() {
        let mut ids = Ids::new(2);
        remember(&mut ids, "a", 1);
        assert!(ids.get(TopicAt(1), &"a".into()).is_none());
        let mut none = Ids::new(0);
        remember(&mut none, "a", 1);
        assert_eq!(content(&none, "a"), None);
    }
}
