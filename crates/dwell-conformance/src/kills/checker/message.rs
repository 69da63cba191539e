//! A message, as its sender and the workers that cancel it have recorded it.

use crate::kills::report::Kind;
use dwell_core::{Changed, Text};

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Topic. `None` if no worker has announced the send.
    pub(super) topic: Option<Text>,
    /// Earliest due time that any send of it requested.
    asked_for: Option<i64>,
    /// Confirmed due time.
    pub(super) confirmed: Option<Option<i64>>,
    pub(super) asks: Vec<Ask>,
}

/// A request to cancel the message.
#[derive(Debug, Default)]
pub(super) struct Ask {
    /// Time and content of the answer.
    pub(super) answer: Option<(i64, Changed)>,
}

impl Sending {
    pub(super) fn attempted(&mut self, topic: Text, due: i64) {
        self.topic = Some(topic);
        self.asked_for = Some(self.asked_for.map_or(due, |earliest| earliest.min(due)));
    }

    /// Earliest time at which a handler may run: the earlier of the requested and the confirmed due
    /// time.
    pub(super) fn due(&self) -> i64 {
        let confirmed = self.confirmed.flatten().unwrap_or(i64::MIN);
        self.asked_for.unwrap_or(i64::MIN).max(confirmed)
    }

    /// Whether its due time is later than its first send, as far as the journals show.
    pub(super) fn waited(&self) -> bool {
        self.confirmed != Some(None)
    }

    fn is_cancelled(&self) -> bool {
        self.asks.iter().any(|ask| matches!(ask.answer, Some((_, Changed::Done))))
    }

    /// Whether it may be cancelled: a worker that was killed before the answer may have succeeded.
    pub(super) fn may_be_cancelled(&self) -> bool {
        self.is_cancelled() || self.asks.iter().any(|ask| ask.answer.is_none())
    }

    /// Whether it was cancelled before it was due, so that no handler may run.
    pub(super) fn never_runs(&self) -> bool {
        self.asks.iter().any(|ask| matches!(ask.answer, Some((at, Changed::Done)) if at < self.due()))
    }

    /// Checks the answers of cancellations. A message that is certainly pending must not be
    /// reported as fired or unknown.
    pub(super) fn check_answers(&self, find: &mut dyn FnMut(Kind, String)) {
        if self.confirmed.is_none() || self.may_be_cancelled() {
            return;
        }
        for (at, changed) in self.asks.iter().filter_map(|ask| ask.answer) {
            if at < self.due() {
                let text = format!(
                    "it is pending until {}, but its cancellation at {at} returned {changed:?}",
                    self.due()
                );
                find(Kind::Broken, text);
            }
        }
    }
}
