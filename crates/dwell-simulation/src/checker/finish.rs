//! Checks of a world that has come to rest.

use super::{Checker, Promise, track::End};
use crate::trace::Subject;
use dwell_core::Address;
use std::collections::BTreeSet;

/// Content of the brokers in a world that has come to rest.
pub(crate) struct Inventory {
    /// Dead letters: the message, and the subscription that gave it up.
    pub(crate) dead: BTreeSet<(Subject, Address)>,
    /// Descriptions of messages left in queues that should be empty.
    pub(crate) left: Vec<String>,
}

impl Checker {
    pub(crate) fn finish(&mut self, inventory: &Inventory) {
        let tracks = std::mem::take(&mut self.tracks);
        for ((subject, of), track) in &tracks {
            if !track.has_ended() {
                let text = format!("it has not ended in {of}");
                self.tally.lost += 1;
                self.broken(Promise::NeverLost, &subject.id, text);
            }
            let ends = track.ends.len() as u32;
            if track.faults == 0 && !track.unsure && ends != track.starts {
                let text = format!("it ended {ends} times in {of}, but was sent {} times", track.starts);
                self.broken(Promise::NeverLost, &subject.id, text);
            }
            let is_dead = track.ends.last().is_some_and(|(_, end)| *end == End::Dead);
            if is_dead && !inventory.dead.contains(&(subject.clone(), of.clone())) {
                let text = format!("{of} gave it up, but it is not among the dead letters");
                self.broken(Promise::NeverLost, &subject.id, text);
            }
        }
        self.tracks = tracks;
        if let Some(left) = inventory.left.first() {
            self.broken(Promise::NeverLost, &"-".into(), format!("messages are left in a queue: {left}"));
        }
    }
}
