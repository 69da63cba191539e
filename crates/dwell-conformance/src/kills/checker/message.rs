//! A message as its sender and whoever cancels it know it.

use crate::kills::report::Kind;
use dwell_core::{Changed, Text};

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// None if nobody has said that it would be sent.
    pub(super) topic: Option<Text>,
    /// The earliest time that any attempt to send it asked for.
    asked_for: Option<i64>,
    /// When it is due, as it was confirmed.
    pub(super) confirmed: Option<Option<i64>>,
    pub(super) asks: Vec<Ask>,
}

/// Somebody wants it cancelled.
#[derive(Debug, Default)]
pub(super) struct Ask {
    /// When the answer came, and which.
    pub(super) answer: Option<(i64, Changed)>,
}

impl Sending {
    pub(super) fn attempted(&mut self, topic: Text, due: i64) {
        self.topic = Some(topic);
        self.asked_for = Some(self.asked_for.map_or(due, |earliest| earliest.min(due)));
    }

    /// Before this, no handler may see it: what was asked for, and what was confirmed, must both have come.
    pub(super) fn due(&self) -> i64 {
        let confirmed = self.confirmed.flatten().unwrap_or(i64::MIN);
        self.asked_for.unwrap_or(i64::MIN).max(confirmed)
    }

    /// Whether it was not sent at once, as far as anybody knows.
    pub(super) fn waited(&self) -> bool {
        self.confirmed != Some(None)
    }

    fn is_cancelled(&self) -> bool {
        self.asks.iter().any(|ask| matches!(ask.answer, Some((_, Changed::Done))))
    }

    /// Who was killed before the answer may have cancelled it.
    pub(super) fn may_be_cancelled(&self) -> bool {
        self.is_cancelled() || self.asks.iter().any(|ask| ask.answer.is_none())
    }

    /// It was cancelled before it was due: no handler ever sees it.
    pub(super) fn never_runs(&self) -> bool {
        self.asks.iter().any(|ask| matches!(ask.answer, Some((at, Changed::Done)) if at < self.due()))
    }

    /// What surely waits must not be said to be gone, or unknown.
    pub(super) fn check_answers(&self, find: &mut dyn FnMut(Kind, String)) {
        if self.confirmed.is_none() || self.may_be_cancelled() {
            return;
        }
        for (at, changed) in self.asks.iter().filter_map(|ask| ask.answer) {
            if at < self.due() {
                let text =
                    format!("it waits until {}, and at {at} its cancellation was {changed:?}", self.due());
                find(Kind::Broken, text);
            }
        }
    }
}
