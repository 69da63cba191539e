//! A message in one subscription: all its deliveries and their outcomes.

use super::{Dead, Holding, Lives, Terms, message::Sending};
use crate::kills::{
    journal::{Ending, micros},
    load::LONGEST_DELAY,
    report::Kind,
    worker::Name,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Number of deliveries without an outcome that make a message poison, unless a subscription sets
/// another.
const QUARANTINE: u32 = 10;

/// Time after the end of a run during which it may not be committed yet, on a log, in microseconds.
const COMMIT: i64 = 1_000_000;

/// Stores keep lease ends in milliseconds.
const MILLISECOND: i64 = 1000;

#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) hand_outs: Vec<HandOut>,
}

/// Runs beyond the one that is required at each count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) duplicates: usize,
    /// Those after a worker that was not killed, but lost its lease.
    pub(super) lapsed: usize,
}

/// One delivery to one worker.
#[derive(Debug)]
pub(super) struct HandOut {
    name: Name,
    /// Offset of its record, on a log.
    position: u64,
    handled: u32,
    failed: u32,
    /// Number of deliveries with these counts, including this one, if the store counts them.
    deliveries: Option<u32>,
    /// Start of the call that returned it.
    since: i64,
    /// When it was received.
    received: i64,
    /// Start of the last call that renewed it.
    pub(super) renewed: Option<i64>,
    pub(super) started: Option<i64>,
    pub(super) ended: Option<(i64, Ending)>,
    /// Whether the store has confirmed its settlement.
    pub(super) is_settled: bool,
}

impl HandOut {
    pub(super) fn new(
        name: Name,
        position: u64,
        (handled, failed): (u32, u32),
        deliveries: Option<u32>,
        since: i64,
        received: i64,
    ) -> Self {
        Self {
            name,
            position,
            handled,
            failed,
            deliveries,
            since,
            received,
            renewed: None,
            started: None,
            ended: None,
            is_settled: false,
        }
    }

    /// When it may be redelivered, and with which count of failures, if its run requested that.
    fn again(&self) -> Option<(i64, u32)> {
        match self.ended? {
            (at, Ending::Deferred(after)) => Some((at.saturating_add_unsigned(after), self.failed)),
            (at, Ending::Failed(after)) => Some((at.saturating_add_unsigned(after), self.failed + 1)),
            (_, Ending::Handled | Ending::Rejected) => None,
        }
    }

    fn is_handled(&self) -> bool {
        matches!(self.ended, Some((_, Ending::Handled)))
    }

    /// Whether its worker or the broker was killed so soon that a log may not have its commit.
    fn is_uncommitted(&self, lives: &Lives) -> bool {
        let ended = self.ended.map_or(self.received, |(at, _)| at);
        let soon = ended..=ended.saturating_add(COMMIT);
        let killed = lives.killed.contains(&self.name) && lives.kills.iter().any(|kill| soon.contains(kill));
        let away = lives.away.iter().any(|(from, to)| *from <= ended.saturating_add(COMMIT) && ended <= *to);
        killed || away
    }

    /// Explains why the same record was delivered again, on a log; an error if there is no reason.
    fn explain_again(&self, run: &HandOut, missed: i64, lives: &Lives) -> Result<(), String> {
        if self.is_settled {
            let explained = self.is_uncommitted(lives);
            return if explained { Ok(()) } else { Err(format!("{} had settled it", self.name)) };
        }
        let between = self.since.saturating_sub(missed)..=run.received;
        if lives.changes.iter().any(|change| between.contains(change)) {
            return Ok(());
        }
        Err(format!("{} held it, and no member joined or left", self.name))
    }

    fn is_given_up(&self) -> bool {
        matches!(self.ended, Some((_, Ending::Rejected | Ending::Failed(_))))
    }
}

impl Track {
    pub(super) fn is_handled(&self) -> bool {
        self.hand_outs.iter().any(HandOut::is_handled)
    }

    /// Checks every run.
    pub(super) fn check(
        &self,
        terms: &Terms,
        lives: &Lives,
        message: &Sending,
        find: &mut dyn FnMut(Kind, String),
    ) -> Again {
        let mut levels: BTreeMap<u32, Vec<&HandOut>> = BTreeMap::new();
        for hand_out in self.hand_outs.iter().filter(|hand_out| hand_out.started.is_some()) {
            levels.entry(hand_out.handled).or_default().push(hand_out);
        }
        let mut again = Again::default();
        for runs in levels.values_mut() {
            runs.sort_by_key(|run| run.received);
            for run in &*runs {
                self.check_time(run, message, find);
            }
            again.duplicates += runs.len() - 1;
            for (index, run) in runs.iter().enumerate().skip(1) {
                let of_its_record = runs[..index].iter().rev().find(|before| before.position == run.position);
                let (before, explained) = match (terms.holding, of_its_record) {
                    (Holding::Lease(lease), _) => {
                        let before = runs[index - 1];
                        (before, self.explain_with_lease(before, run, lease, terms, lives, message))
                    }
                    (Holding::Session(missed), Some(before)) => {
                        (*before, before.explain_again(run, missed, lives))
                    }
                    (Holding::Session(_), None) => {
                        (runs[index - 1], self.explain_record(&runs[..=index], terms, lives, message))
                    }
                };
                match explained {
                    Ok(()) => again.lapsed += usize::from(!lives.killed.contains(&before.name)),
                    Err(why) => find(Kind::Unexplained, format!("runs it again: {why}: {self}")),
                }
            }
        }
        again
    }

    /// Checks that no run starts before its due time, or with counts that no earlier run led to.
    fn check_time(&self, run: &HandOut, message: &Sending, find: &mut dyn FnMut(Kind, String)) {
        if message.never_runs() {
            find(Kind::Broken, format!("runs it, but it was cancelled before it was due: {self}"));
        }
        let Some(due) = self.due(run.handled, run.failed, message) else {
            let (handled, failed) = (run.handled, run.failed);
            let text = format!(
                "runs it as handled {handled} and failed {failed}, but no run led to these counts: {self}"
            );
            return find(Kind::Broken, text);
        };
        if let Some(started) = run.started.filter(|started| *started < due) {
            find(Kind::Early, format!("runs it at {started}, but it is due at {due}: {self}"));
        }
    }

    /// Earliest time at which it may run with these counts. `None` if it must not run.
    fn due(&self, handled: u32, failed: u32, message: &Sending) -> Option<i64> {
        if handled == 0 {
            return (failed == 0).then(|| message.due());
        }
        let before = self.hand_outs.iter().filter(|hand_out| hand_out.handled + 1 == handled);
        let again = before.filter_map(HandOut::again);
        again.filter(|(_, after)| *after == failed).map(|(due, _)| due).min()
    }

    /// Explains why a run followed another at the same count, on a store with leases; an error if
    /// there is no reason.
    fn explain_with_lease(
        &self,
        before: &HandOut,
        run: &HandOut,
        lease: i64,
        terms: &Terms,
        lives: &Lives,
        message: &Sending,
    ) -> Result<(), String> {
        if before.is_settled {
            let waited = run.handled > 0 || message.waited();
            let explained =
                terms.copies_what_waits && waited && lives.killed_between(began(message), run.received);
            return if explained { Ok(()) } else { Err(format!("{} had settled it", before.name)) };
        }
        // It cannot have been delivered before it was due.
        let due = self.due(before.handled, before.failed, message).unwrap_or(i64::MIN);
        let held = before.renewed.unwrap_or(i64::MIN).max(before.since).max(due);
        let held = held.div_euclid(MILLISECOND).saturating_mul(MILLISECOND);
        let free = held.saturating_add(lease);
        if run.received < free {
            return Err(format!("{} held it until {free}", before.name));
        }
        let moved_on = self.hand_outs.iter().filter(|other| other.handled > run.handled);
        let moved_on = moved_on.map(|other| other.received).min();
        match moved_on.filter(|at| terms.moves_at_once && *at < run.since.max(free)) {
            Some(at) => Err(format!("it had moved on by {at}, and its counts went down")),
            None => Ok(()),
        }
    }

    /// Explains why there is one more record at the same count, on a log, than in the runs before
    /// the last; an error if there is no reason. Each run that requested this count has written one
    /// record. A forwarder or relay that was killed may have copied it without a commit.
    fn explain_record(
        &self,
        runs: &[&HandOut],
        terms: &Terms,
        lives: &Lives,
        message: &Sending,
    ) -> Result<(), String> {
        let Some(run) = runs.last() else { return Ok(()) };
        let records: BTreeSet<_> = runs.iter().map(|run| run.position).collect();
        let led_here = |before: &&HandOut| {
            before.handled + 1 == run.handled
                && before.again().is_some_and(|(_, failed)| failed == run.failed)
        };
        let asked: Vec<_> =
            self.hand_outs.iter().filter(led_here).filter_map(|before| before.ended).collect();
        if records.len() <= asked.len() {
            return Ok(());
        }
        let waited = match run.handled {
            0 => message.waited(),
            _ => asked.iter().any(|(_, ending)| *ending != Ending::Deferred(0)),
        };
        let began = asked.iter().map(|(at, _)| *at).min().unwrap_or_else(|| began(message));
        if terms.copies_what_waits && waited && lives.killed_between(began, run.received) {
            return Ok(());
        }
        Err(format!("{} records of it, but no worker that may have copied it was killed", records.len()))
    }

    /// Checks the dead letters. Each needs one run that gave the message up, or a message in
    /// quarantine, whatever the outcome of its killed run would have been.
    pub(super) fn check_letters(&self, letters: &[&Dead], find: &mut dyn FnMut(String)) {
        let (poison, given_up): (Vec<&Dead>, Vec<&Dead>) =
            letters.iter().partition(|letter| letter.is_poison);
        let gave_up = self.hand_outs.iter().filter(|hand_out| hand_out.is_given_up()).count();
        if given_up.len() > gave_up {
            let count = given_up.len();
            find(format!("has {count} dead letters of it, but gave it up {gave_up} times: {self}"));
        }
        let too_often = |hand_out: &HandOut| hand_out.deliveries.is_some_and(|count| count > QUARANTINE);
        if poison.len() > self.hand_outs.iter().filter(|hand_out| too_often(hand_out)).count() {
            find(format!("gave it up as poison before {QUARANTINE} deliveries: {self}"));
        }
        let is_over = self.hand_outs.iter().any(|hand_out| hand_out.is_handled() && hand_out.is_settled);
        if !given_up.is_empty() && self.is_handled() || !letters.is_empty() && is_over {
            find(format!("handled it, but also has a dead letter of it: {self}"));
        }
    }
}

/// Earliest time at which it was sent.
fn began(message: &Sending) -> i64 {
    message.due().saturating_sub(micros(LONGEST_DELAY))
}

/// Lists its deliveries in order.
impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hand_outs: Vec<_> = self.hand_outs.iter().collect();
        hand_outs.sort_by_key(|hand_out| hand_out.received);
        write!(f, "delivered {} times", hand_outs.len())?;
        for hand_out in hand_outs {
            let HandOut { name, handled, failed, since, received, .. } = hand_out;
            write!(f, "; to {name} at {since} to {received} as handled {handled} and failed {failed}")?;
            if let Some(renewed) = hand_out.renewed {
                write!(f, ", renewed at {renewed}")?;
            }
            if let Some(started) = hand_out.started {
                write!(f, ", started at {started}")?;
            }
            if let Some((at, ending)) = hand_out.ended {
                write!(f, ", {ending:?} at {at}")?;
            }
            f.write_str(if hand_out.is_settled { ", settled" } else { ", not settled" })?;
        }
        Ok(())
    }
}
