//! Reads the journals, copy by copy, and reports broken promises.
//!
//! A *copy* is a message in one subscription. At each handled count it must run exactly once. Every
//! further run is a duplicate and needs an explanation: the previous delivery was not settled
//! according to its worker's journal, and its lease had expired before the next delivery. A killed
//! worker explains this; so does a worker that stalled for longer than its lease.
//!
//! A confirmed settlement rules out this explanation, with two exceptions:
//!
//! * On a log, a settlement is final only when its offset is committed. A kill may prevent the
//!   commit.
//! * Where pending messages are carried on by copying them, a kill may leave two copies. On a log
//!   the two cases can be distinguished, because every copy has its own offset: a repeated record
//!   needs a prevented commit, and a second record needs a worker that wrote it.
//!
//! Where a time is not known exactly, the checker uses the end of the interval that reports no
//! fault: a call began at a known time, its effect came later, and the journal entry later still.

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

/// Facts about the store that the checker needs.
pub(super) struct Terms {
    /// Subscriptions of each topic.
    pub(super) places: BTreeMap<Text, Vec<Text>>,
    pub(super) holding: Holding,
    /// Whether a move is one atomic step: a moved message no longer exists at its origin.
    pub(super) moves_at_once: bool,
    /// Whether a forwarder or a relay copies pending messages. A killed one may already have made a
    /// copy.
    pub(super) copies_what_waits: bool,
}

/// How long a delivery belongs to its consumer alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// Until this number of microseconds after its last renewal.
    Lease(i64),
    /// Until the members of the group change. The group notices a killed member after this number
    /// of microseconds, and admits a new member after a while. Records that change their owner for
    /// this reason may have been delivered in between.
    Session(i64),
}

/// Contents of the store after the load has ended and drained.
#[derive(Default)]
pub(super) struct Inventory {
    pub(super) dead: Vec<Dead>,
    /// Messages that should not exist any more, as text.
    pub(super) left: Vec<String>,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) id: MessageId,
    pub(super) of: Text,
    /// The message was in quarantine after too many deliveries, and was given up without a run.
    pub(super) is_poison: bool,
}

/// Times at which workers and the broker started and stopped.
#[derive(Default)]
struct Lives {
    killed: BTreeSet<Name>,
    /// When consumers started or were killed.
    changes: Vec<i64>,
    /// When workers were killed.
    kills: Vec<i64>,
    /// Intervals in which the broker was unavailable.
    away: Vec<(i64, i64)>,
}

impl Lives {
    /// Whether a worker or the broker may have been killed in this interval. The broker may have
    /// been killed at any time between the request and its recovery.
    fn killed_between(&self, from: i64, to: i64) -> bool {
        let broker = self.away.iter().any(|(gone, back)| *gone <= to && from <= *back);
        broker || self.kills.iter().any(|kill| (from..=to).contains(kill))
    }
}

/// Everything that the journals record.
pub(super) struct Checker {
    terms: Terms,
    messages: BTreeMap<MessageId, Sending>,
    tracks: BTreeMap<(MessageId, Text), Track>,
    /// Position of each delivery in its copy.
    hand_outs: BTreeMap<(Name, Text, Lease), (MessageId, usize)>,
    lives: Lives,
    /// Findings that need no other entry to be wrong.
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

    /// Records that a worker started.
    pub(super) fn started(&mut self, name: &Name, at: i64) {
        if name.role == Role::Consumer {
            self.lives.changes.push(at);
        }
    }

    /// Records that a worker was killed.
    pub(super) fn killed(&mut self, name: &Name, at: i64) {
        self.started(name, at);
        self.lives.kills.push(at);
        self.lives.killed.insert(name.clone());
    }

    /// Records that the broker was killed and has recovered.
    pub(super) fn broker_was_away(&mut self, from: i64, to: i64) {
        self.lives.changes.extend([from, to]);
        self.lives.away.push((from, to));
    }

    /// How long a delivery belongs to its consumer alone.
    pub(super) fn holding(&self) -> Holding {
        self.terms.holding
    }

    /// Number of messages whose send is confirmed so far.
    pub(super) fn sent(&self) -> usize {
        self.messages.values().filter(|message| message.confirmed.is_some()).count()
    }

    /// Number of copies that have been handled so far.
    pub(super) fn handled(&self) -> usize {
        self.tracks.values().filter(|track| track.is_handled()).count()
    }

    /// Reads a line of a worker's journal. The lines of one worker come in order; those of
    /// different workers in any order.
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
                    self.odd.push(Finding {
                        kind: Kind::Broken,
                        id,
                        text: format!("{of} received it altered"),
                    });
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
                let text = format!("{name} processes {lease:?} in {of}, which was never delivered to it");
                self.odd.push(Finding { kind: Kind::Broken, id: None, text });
            }
        }
        found.map(|(id, _)| id)
    }

    /// Returns the final report.
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
                None => find(Kind::Broken, "received it, but no worker sent it".to_owned()),
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
                    find(Kind::Lost, format!("{of} never finished it: {track}"));
                }
            }
        }
        for (id, of) in dead.into_keys() {
            let text = format!("{of} has a dead letter of a message that was not sent there");
            found.push(Finding { kind: Kind::Broken, id: Some(id), text });
        }
        found.into_iter().for_each(|finding| report.add(finding));
        report
    }
}
