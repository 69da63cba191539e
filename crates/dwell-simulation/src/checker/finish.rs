//! What is owed when everything has come to rest.

use super::{Checker, Promise, track::End};
use crate::trace::Subject;
use dwell_core::Address;
use std::collections::BTreeSet;

/// What the brokers hold when everything has come to rest.
pub(crate) struct Inventory {
    /// What lies in dead-letter channels: the message, and the subscription that gave it up.
    pub(crate) dead: BTreeSet<(Subject, Address)>,
    /// What is left in queues that should be empty, in words.
    pub(crate) left: Vec<String>,
}

impl Checker {
    pub(crate) fn finish(&mut self, inventory: &Inventory) {
        let tracks = std::mem::take(&mut self.tracks);
        for ((subject, of), track) in &tracks {
            if !track.has_ended() {
                let text = format!("{of} never came to an end with it");
                self.tally.lost += 1;
                self.broken(Promise::NeverLost, &subject.id, text);
            }
            let ends = track.ends.len() as u32;
            if track.faults == 0 && !track.unsure && ends != track.starts {
                let text = format!("{of} ended {ends} times with what was sent {} times", track.starts);
                self.broken(Promise::NeverLost, &subject.id, text);
            }
            let is_dead = track.ends.last().is_some_and(|(_, end)| *end == End::Dead);
            if is_dead && !inventory.dead.contains(&(subject.clone(), of.clone())) {
                let text = format!("{of} gave it up, and it does not lie among the dead letters");
                self.broken(Promise::NeverLost, &subject.id, text);
            }
        }
        self.tracks = tracks;
        if let Some(left) = inventory.left.first() {
            self.broken(Promise::NeverLost, &"-".into(), format!("something is left behind: {left}"));
        }
    }
}
