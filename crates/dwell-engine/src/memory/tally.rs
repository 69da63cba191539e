//! Numbers of records by topic, subscription and state.

use dwell_core::{Count, State, Text};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Tally(BTreeMap<(Text, Option<Text>, State), u64>);

impl Tally {
    pub(super) fn add(&mut self, topic: Text, subscription: Option<Text>, state: State) {
        *self.0.entry((topic, subscription, state)).or_default() += 1;
    }

    pub(super) fn remove(&mut self, topic: Text, subscription: Option<Text>, state: State) {
        let key = (topic, subscription, state);
        if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = Count> {
        self.0.iter().map(|((topic, subscription, state), count)| Count {
            topic: topic.clone(),
            subscription: subscription.clone(),
            state: *state,
            count: *count,
        })
    }
}
