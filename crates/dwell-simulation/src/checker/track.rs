//! History of one message in one subscription: how often it was placed, run and ended, at each of
//! its counts.

use crate::trace::Ending;
use dwell_core::{Attempts, Due, Text};
use std::{collections::BTreeMap, time::Duration};

/// End of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Handled,
    Dead,
    Discarded,
    Cancelled,
    Replaced,
    Parked,
}

/// Request of a run to see the message again, with these counts and this due time.
#[derive(Clone, Debug)]
pub(super) struct Again {
    pub(super) attempts: Attempts,
    pub(super) due: Expected,
}

/// Expected due time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    Exactly(Due),
    /// Any delay between these two, because of jitter.
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

    /// Returns whether `due` allows an earlier run than requested.
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

/// Message given up with these counts, into this channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Killed {
    pub(super) attempts: Attempts,
    pub(super) channel: Text,
}

/// Run of a handler.
#[derive(Clone, Debug)]
pub(super) struct RunInfo {
    pub(super) attempts: Attempts,
    pub(super) ending: Option<Ending>,
}

/// Events at one handled count.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    /// Number placed at the broker.
    pub(super) placed: u32,
    /// Of those, number not placed by a request of a user.
    pub(super) copied: u32,
    /// Number placed in the store by a request of a user.
    pub(super) stored: u32,
    /// Number cancelled or replaced while pending at the broker; `gone_from_store` is the same for
    /// the store.
    pub(super) gone: u32,
    pub(super) gone_from_store: u32,
    /// Number returned unchanged by the broker on request.
    pub(super) given_back: u32,
    pub(super) runs: u32,
    /// Number of runs that ended with a release.
    pub(super) released: u32,
}

/// One message in one subscription.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    pub(super) levels: BTreeMap<u32, Level>,
    /// Requests of runs to see it again.
    pub(super) again: Vec<Again>,
    /// Runs that gave it up, into a channel.
    pub(super) killed: Vec<Killed>,
    pub(super) deaths: u32,
    /// Number of accepted sends and replays.
    pub(super) starts: u32,
    pub(super) ends: Vec<(Duration, End)>,
    /// Set if it may have been replaced, so that its number of ends is uncertain.
    pub(super) unsure: bool,
    /// Copies that took the place of a copy that waited.
    pub(super) repeated: u32,
    pub(super) last_placed: Option<Duration>,
    /// Number of faults that may have caused a redelivery.
    pub(super) faults: u32,
}

impl Track {
    pub(super) fn level(&mut self, handled: u32) -> &mut Level {
        self.levels.entry(handled).or_default()
    }

    /// Returns the number of runs that only a fault explains.
    pub(super) fn extra_runs(&self) -> u32 {
        let extra = |level: &Level| {
            level.runs.saturating_sub((level.placed + level.given_back).saturating_sub(level.gone))
        };
        self.levels.values().map(extra).sum()
    }

    /// Returns the number of copies that only a fault explains.
    pub(super) fn extra_copies(&self) -> u32 {
        let asked = |handled: u32| {
            let again = self.again.iter().filter(|again| again.attempts.handled == handled).count() as u32;
            let level = &self.levels[&handled];
            (again + level.released + level.stored).saturating_sub(level.gone_from_store)
        };
        self.levels.iter().map(|(handled, level)| level.copied.saturating_sub(asked(*handled))).sum()
    }

    /// Returns whether a run requested another run with these counts.
    pub(super) fn asked_for(&self, attempts: Attempts) -> bool {
        self.again.iter().any(|again| again.attempts == attempts)
    }

    pub(super) fn end(&mut self, at: Duration, end: End) {
        self.ends.push((at, end));
    }

    /// Returns whether it has ended since it was last placed.
    pub(super) fn has_ended(&self) -> bool {
        let last_end = self.ends.last().map(|(at, _)| *at);
        self.last_placed.is_none_or(|placed| last_end.is_some_and(|end| end >= placed))
    }
}
