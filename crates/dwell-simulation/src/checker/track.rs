//! One message in one subscription: how often it was placed, run and ended, at each of its counts.

use crate::trace::Ending;
use dwell_core::{Attempts, Due, Text};
use std::{collections::BTreeMap, time::Duration};

/// How a message came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Handled,
    Dead,
    Discarded,
    Cancelled,
    Replaced,
    Parked,
}

/// What a run asked for: the message again, with these counts and this due time.
#[derive(Clone, Debug)]
pub(super) struct Again {
    pub(super) attempts: Attempts,
    pub(super) due: Expected,
}

/// When it may come again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Exactly(Due),
    /// After a delay from the first to the second: jitter.
    Between(Duration, Duration),
}

impl Expected {
    pub(super) fn fits(self, due: Due) -> bool {
        match (self, due) {
            (Self::Exactly(expected), due) => expected == due,
            (Self::Between(low, high), Due::After(delay)) => low <= delay && delay <= high,
            (Self::Between(..), Due::At(_)) => false,
        }
    }

    /// Whether `due` lets it run earlier than was asked for.
    pub(super) fn is_undercut_by(self, due: Due) -> bool {
        match (self, due) {
            (Self::Exactly(Due::After(expected)) | Self::Between(expected, _), Due::After(delay)) => {
                delay < expected
            }
            (Self::Exactly(Due::At(expected)), Due::At(time)) => time < expected,
            (Self::Exactly(Due::At(_)), Due::After(delay)) => delay.is_zero(),
            _ => true,
        }
    }
}

/// A message was given up: with these counts, into this channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Killed {
    pub(super) attempts: Attempts,
    pub(super) channel: Text,
}

/// A run of a handler.
#[derive(Clone, Debug)]
pub(super) struct RunInfo {
    pub(super) attempts: Attempts,
    pub(super) ending: Option<Ending>,
}

/// What happened at one handled count.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// Placed where handlers are fed from.
    pub(super) placed: u32,
    /// Of those, by something else than a request of a user.
    pub(super) copied: u32,
    /// Placed in the store by a request of a user.
    pub(super) stored: u32,
    /// Cancelled or replaced while it waited, by where it waited.
    pub(super) gone: u32,
    pub(super) gone_from_store: u32,
    /// Put back by the broker, as it came, because it was asked to.
    pub(super) given_back: u32,
    pub(super) runs: u32,
    /// Runs that ended with a release.
    pub(super) released: u32,
}

/// One message in one subscription.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) levels: BTreeMap<u32, Level>,
    /// Runs that asked for another.
    pub(super) again: Vec<Again>,
    /// Runs that gave it up, to be put into a channel.
    pub(super) killed: Vec<Killed>,
    pub(super) deaths: u32,
    /// Sends and replays that were accepted.
    pub(super) starts: u32,
    pub(super) ends: Vec<(Duration, End)>,
    /// It may or may not have been replaced: how often it ends cannot be told.
    pub(super) unsure: bool,
    /// Copies that took the place of a copy that waited.
    pub(super) repeated: u32,
    pub(super) last_placed: Option<Duration>,
    /// Faults that may have made it come again.
    pub(super) faults: u32,
}

impl Track {
    pub(super) fn level(&mut self, handled: u32) -> &mut Level {
        self.levels.entry(handled).or_default()
    }

    /// Runs that nothing but a fault explains.
    pub(super) fn extra_runs(&self) -> u32 {
        let extra = |level: &Level| {
            level.runs.saturating_sub((level.placed + level.given_back).saturating_sub(level.gone))
        };
        self.levels.values().map(extra).sum()
    }

    /// Copies that nothing but a fault explains.
    pub(super) fn extra_copies(&self) -> u32 {
        let asked = |handled: u32| {
            let again = self.again.iter().filter(|again| again.attempts.handled == handled).count() as u32;
            let level = &self.levels[&handled];
            (again + level.released + level.stored).saturating_sub(level.gone_from_store)
        };
        self.levels.iter().map(|(handled, level)| level.copied.saturating_sub(asked(*handled))).sum()
    }

    /// Whether some run asked to be run again with these counts.
    pub(super) fn asked_for(&self, attempts: Attempts) -> bool {
        self.again.iter().any(|again| again.attempts == attempts)
    }

    pub(super) fn end(&mut self, at: Duration, end: End) {
        self.ends.push((at, end));
    }

    /// Whether it came to an end since it was last placed.
    pub(super) fn has_ended(&self) -> bool {
        let last_end = self.ends.last().map(|(at, _)| *at);
        self.last_placed.is_none_or(|placed| last_end.is_some_and(|end| end >= placed))
    }
}
