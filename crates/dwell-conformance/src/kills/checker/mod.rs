//! Goes through the journals, copy by copy, and says which promise was broken.
//!
//! A *copy* is a message in one subscription. At each handled count it is owed one run; every further one is a duplicate,
//! and needs an explanation: the hand-out before was never settled, as far as its holder could write down, and its lease
//! had run out when the next one was made. A worker that was killed explains just that, and so does one that stood still
//! for too long. A settlement that was confirmed explains nothing any more, with two exceptions: on a log it only counts for
//! a commit, which a kill may prevent; and where copies are made of what waits, a kill may leave two of them. A log shows
//! which it was, since every copy has a place of its own there: a record that comes again needs a commit that was prevented,
//! and a second record needs somebody who wrote it.
//!
//! Where a moment is not known exactly, the checker takes the end of its interval that accuses nobody: a call began at a
//! known time, its effect came later, and what is written down about it later still.

mod message;
#[cfg(test)]
mod tests;
mod track;

use super::{
    journal::{Entry, Lease, Line},
    report::{Finding, Kind, Report},
    worker::{Name, Role},
};
use dwell_core::{MessageId, Text};
use message::{Ask, Sending};
use std::collections::{BTreeMap, BTreeSet};
use track::{HandOut, Track};

/// What the checker has to know about the store.
pub(super) struct Terms {
    /// The subscriptions of each topic.
    pub(super) places: BTreeMap<Text, Vec<Text>>,
    pub(super) holding: Holding,
    /// A move is one step: what has moved on is no longer where it was.
    pub(super) moves_at_once: bool,
    /// What waits is carried on by copies: by a forwarder, or by a relay. One that is killed may have made one already.
    pub(super) copies_what_waits: bool,
}

/// How long a hand-out is its holder's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// This number of microseconds after its last renewal.
    Lease(i64),
    /// Until the members change. The group notices a killed member after this number of microseconds, and admits a new one
    /// after a while: records that change hands for that reason may have been handed out since.
    Session(i64),
}

/// What is in the store when everything has come to rest.
#[derive(Default)]
pub(super) struct Inventory {
    pub(super) dead: Vec<Dead>,
    /// What should not be there, in words.
    pub(super) left: Vec<String>,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) id: MessageId,
    pub(super) of: Text,
    /// It took its worker down too often, and was given up without a run.
    pub(super) is_poison: bool,
}

/// Who was there when.
#[derive(Default)]
struct Lives {
    killed: BTreeSet<Name>,
    /// When consumers came and were killed.
    changes: Vec<i64>,
    /// When workers were killed.
    kills: Vec<i64>,
    /// From when to when the broker was away.
    away: Vec<(i64, i64)>,
}

impl Lives {
    /// The broker may have been killed at any moment from when that was asked for until it was back.
    fn killed_between(&self, from: i64, to: i64) -> bool {
        let broker = self.away.iter().any(|(gone, back)| *gone <= to && from <= *back);
        broker || self.kills.iter().any(|kill| (from..=to).contains(kill))
    }
}

/// All that the journals say.
pub(super) struct Checker {
    terms: Terms,
    messages: BTreeMap<MessageId, Sending>,
    tracks: BTreeMap<(MessageId, Text), Track>,
    /// Where a hand-out is in its copy.
    hand_outs: BTreeMap<(Name, Text, Lease), (MessageId, usize)>,
    lives: Lives,
    /// What makes no sense by itself.
    odd: Vec<Finding>,
}

impl Checker {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            messages: BTreeMap::new(),
            tracks: BTreeMap::new(),
            hand_outs: BTreeMap::new(),
            lives: Lives::default(),
            odd: vec![],
        }
    }

    /// A worker came.
    pub(super) fn started(&mut self, name: &Name, at: i64) {
        if name.role == Role::Consumer {
            self.lives.changes.push(at);
        }
    }

    /// A worker was killed.
    pub(super) fn killed(&mut self, name: &Name, at: i64) {
        self.started(name, at);
        self.lives.kills.push(at);
        self.lives.killed.insert(name.clone());
    }

    /// The broker was killed, and came back.
    pub(super) fn broker_was_away(&mut self, from: i64, to: i64) {
        self.lives.changes.extend([from, to]);
        self.lives.away.push((from, to));
    }

    /// How long a hand-out is its holder's alone.
    pub(super) fn holding(&self) -> Holding {
        self.terms.holding
    }

    /// Messages whose send was confirmed so far.
    pub(super) fn sent(&self) -> usize {
        self.messages.values().filter(|message| message.confirmed.is_some()).count()
    }

    /// Copies that came to a good end so far.
    pub(super) fn handled(&self) -> usize {
        self.tracks.values().filter(|track| track.is_handled()).count()
    }

    /// Takes in what a worker wrote. Its own lines come in order; those of different workers in any.
    pub(super) fn observe(&mut self, name: &Name, Line(at, entry): Line) {
        match entry {
            Entry::Attempted { id, topic, due } => self.message(id).attempted(topic, due),
            Entry::Confirmed { id, due } => self.message(id).confirmed = Some(due),
            Entry::CancelAsked { id } => self.message(id).asks.push(Ask::default()),
            Entry::CancelAnswered { id, changed } => {
                if let Some(ask) = self.message(id).asks.last_mut() {
                    ask.answer = Some((at, changed));
                }
            }
            Entry::Received { of, lease, id, handled, failed, deliveries, since } => {
                let track = self.tracks.entry((id.clone(), of.clone())).or_default();
                self.hand_outs.insert((name.clone(), of, lease), (id, track.hand_outs.len()));
                let counts = (handled, failed);
                track.hand_outs.push(HandOut::new(name.clone(), lease.0, counts, deliveries, since, at));
            }
            Entry::Renewed { of, leases, since } => {
                for lease in leases {
                    self.with(name, &of, lease, |hand_out| hand_out.renewed = Some(since));
                }
            }
            Entry::Settled { of, leases } => {
                for lease in leases {
                    self.with(name, &of, lease, |hand_out| hand_out.is_settled = true);
                }
            }
            Entry::Started { of, lease, altered } => {
                let id = self.with(name, &of, lease, |hand_out| hand_out.started = Some(at));
                if altered {
                    self.odd.push(Finding { kind: Kind::Broken, id, text: format!("{of} got it altered") });
                }
            }
            Entry::Ended { of, lease, ending } => {
                self.with(name, &of, lease, |hand_out| hand_out.ended = Some((at, ending)));
            }
        }
    }

    fn message(&mut self, id: MessageId) -> &mut Sending {
        self.messages.entry(id).or_default()
    }

    fn with(
        &mut self,
        name: &Name,
        of: &Text,
        lease: Lease,
        change: impl FnOnce(&mut HandOut),
    ) -> Option<MessageId> {
        let found = self.hand_outs.get(&(name.clone(), of.clone(), lease)).cloned();
        let hand_out = found.as_ref().and_then(|(id, index)| {
            let track = self.tracks.get_mut(&(id.clone(), of.clone()))?;
            track.hand_outs.get_mut(*index)
        });
        match hand_out {
            Some(hand_out) => change(hand_out),
            None => {
                let text = format!("{name} works in {of} on {lease:?}, which it was never handed");
                self.odd.push(Finding { kind: Kind::Broken, id: None, text });
            }
        }
        found.map(|(id, _)| id)
    }

    /// What it comes to.
    pub(super) fn report(&self, inventory: &Inventory) -> Report {
        let mut report = Report::default();
        self.odd.iter().for_each(|finding| report.add(finding.clone()));
        for left in &inventory.left {
            report.add(Finding { kind: Kind::Broken, id: None, text: format!("left in the store: {left}") });
        }
        let mut dead: BTreeMap<_, Vec<&Dead>> = BTreeMap::new();
        for letter in &inventory.dead {
            dead.entry((letter.id.clone(), letter.of.clone())).or_default().push(letter);
        }
        let mut found = vec![];
        for ((id, of), track) in &self.tracks {
            let message = self.messages.get(id);
            let mut find = |kind, text: String| {
                found.push(Finding { kind, id: Some(id.clone()), text: format!("{of} {text}") })
            };
            match message {
                Some(message) => {
                    let again = track.check(&self.terms, &self.lives, message, &mut find);
                    report.duplicates += again.duplicates;
                    report.lapsed += again.lapsed;
                }
                None => find(Kind::Broken, "got it, and nobody sent it".to_owned()),
            }
        }
        for (id, message) in &self.messages {
            let mut find = |kind, text: String| found.push(Finding { kind, id: Some(id.clone()), text });
            message.check_answers(&mut find);
            let places = message.topic.as_ref().and_then(|topic| self.terms.places.get(topic));
            report.sent += usize::from(message.confirmed.is_some());
            for of in places.into_iter().flatten() {
                let place = (id.clone(), of.clone());
                let (none, no_dead) = (Track::default(), vec![]);
                let track = self.tracks.get(&place).unwrap_or(&none);
                let letters = dead.remove(&place).unwrap_or(no_dead);
                track.check_letters(&letters, &mut |text| find(Kind::Broken, format!("{of} {text}")));
                if message.confirmed.is_none() {
                    continue;
                }
                report.copies += 1;
                if track.is_handled() {
                    report.handled += 1;
                } else if !letters.is_empty() {
                    report.dead += 1;
                } else if message.never_runs() {
                    report.cancelled += 1;
                } else if message.may_be_cancelled() {
                    report.unsure += 1;
                } else {
                    find(Kind::Lost, format!("{of} never came to an end with it: {track}"));
                }
            }
        }
        for (id, of) in dead.into_keys() {
            let text = format!("{of} has a dead letter that nobody sent there");
            found.push(Finding { kind: Kind::Broken, id: Some(id), text });
        }
        found.into_iter().for_each(|finding| report.add(finding));
        report
    }
}
