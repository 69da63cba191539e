//! Passes records on: to their target, to a delay topic ("shelf"), or to the parking topic.
//!
//! A record is completed only after its next place has confirmed it. A record that its target
//! refuses goes to a shelf, and a record that no shelf accepts is parked, so that one record
//! never holds up another. Only if a delay topic or the parking topic accepts nothing at all, the
//! relay retries with a pause, because there is no other place. A parking topic that was deleted is
//! recreated first.

use super::{
    Counts,
    budget::Budget,
    digest::{Digest, Event},
    hop::{Plan, park},
    targets::{Pass, Targets},
    topics,
};
use crate::{
    cluster::Cluster,
    group::{Member, Settling},
    outbox::{Outbox, Transaction, is_purged},
    record::{Outgoing, Record},
};
use dwell_core::{Clock, Error, ErrorKind, LeaseId, Result, Text, Timestamp};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Pause before refused records are sent to the same place again.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause before an absent target is checked again. Its records are rewritten each time.
const LOOK_AGAIN: Duration = Duration::from_secs(20);

/// How long no record may be confirmed before unsent records are purged.
const SILENCE: Duration = Duration::from_millis(100);

/// State that all workers of a relay share.
pub(super) struct Shared {
    pub(super) cluster: Cluster,
    /// Due records have a connection of their own, so that they do not queue behind records that
    /// are moved between shelves.
    pub(super) to_targets: Outbox,
    pub(super) to_shelves: Outbox,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) targets: Arc<Targets>,
    pub(super) counts: Arc<Counts>,
    pub(super) budget: Arc<Budget>,
    pub(super) digest: Digest,
}

/// A number of records, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Load {
    pub(super) fn of(steps: &[Step]) -> Self {
        Self { count: steps.len(), bytes: steps.iter().map(|step| step.size).sum() }
    }

    pub(super) fn add(&mut self, more: Self) {
        self.count += more.count;
        self.bytes += more.bytes;
    }

    pub(super) fn remove(&mut self, less: Self) {
        self.count -= less.count;
        self.bytes -= less.bytes;
    }

    pub(super) fn plus(mut self, more: Self) -> Self {
        self.add(more);
        self
    }

    /// Returns whether both the number and the bytes are below a limit.
    pub(super) fn is_below(self, most: Self) -> bool {
        self.count < most.count && self.bytes < most.bytes
    }
}

/// The next step of a record, and what is completed and counted once it is done.
pub(super) struct Step {
    pub(super) lease: LeaseId,
    pub(super) size: usize,
    pub(super) from: Text,
    pub(super) outgoing: Outgoing,
    pub(super) kind: Kind,
}

impl AsRef<Outgoing> for Step {
    fn as_ref(&self) -> &Outgoing {
        &self.outgoing
    }
}

pub(super) enum Kind {
    Forward(Plan, #[expect(dead_code, reason = "it counts until it is dropped")] Pass),
    Shelve(Plan),
    Hold(Plan),
    Park,
}

impl Shared {
    /// Returns how long no record was confirmed while some are in flight.
    pub(super) fn silence(&self) -> Duration {
        self.to_targets.silence().max(self.to_shelves.silence())
    }

    /// Drops records that the producers have not sent yet, while no broker confirms anything.
    /// Records of lost partitions belong to another relay by now, and the others are handed over
    /// again.
    pub(super) fn purge_if_silent(&self) {
        for outbox in [&self.to_targets, &self.to_shelves] {
            if outbox.silence() >= SILENCE {
                outbox.purge();
            }
        }
    }

    /// Sends records until each has been stored or belongs to another relay. A record that its
    /// target refuses is put back on a shelf or parked. A record that a shelf refuses is retried,
    /// because there is no other place for it.
    pub(super) async fn pass_on(&self, member: &Member, mut steps: Vec<Step>) {
        while !steps.is_empty() {
            let (left, moved) = self.send_once(member, steps).await;
            if !moved {
                self.clock.sleep(PAUSE).await;
            }
            steps = left;
            steps.retain(|step| member.is_open(step.lease));
        }
    }

    /// Does the same in transactions: all records of an attempt, or none.
    pub(super) async fn pass_on_at_once(
        &self,
        member: &Arc<Member>,
        outbox: &Outbox,
        mut steps: Vec<Step>,
    ) -> Result<()> {
        loop {
            steps.retain(|step| member.is_open(step.lease));
            if steps.is_empty() {
                return Ok(());
            }
            steps = self.turn_away_all_absent(steps).await;
            self.keep_parking_topic(&steps).await;
            let leases: Vec<_> = steps.iter().map(|step| step.lease).collect();
            let of = member.clone();
            let ended = outbox.transact(&steps, move || of.offsets(&leases)).await?;
            let now = self.clock.now();
            match ended {
                Transaction::Committed => {
                    let mut settling = member.settling();
                    for step in &steps {
                        self.got_there(step);
                        self.done(&mut settling, step, now);
                    }
                    return Ok(());
                }
                Transaction::Refused(reasons) => {
                    let (mut moved, mut stays) = (false, false);
                    let judged = steps.into_iter().zip(reasons).map(|(step, reason)| {
                        let Some(error) = reason else { return step };
                        let (step, elsewhere) = self.failed(step, &error, now);
                        (moved, stays) = (moved || elsewhere, stays || !elsewhere);
                        step
                    });
                    steps = judged.collect();
                    if stays || !moved {
                        self.clock.sleep(PAUSE).await;
                    }
                }
                Transaction::Undone(error) => {
                    tracing::warn!(%error, "transaction aborted; retrying");
                    self.clock.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Calls [`Self::turn_away_absent`] for each target.
    async fn turn_away_all_absent(&self, steps: Vec<Step>) -> Vec<Step> {
        let mut groups: BTreeMap<Text, Vec<Step>> = BTreeMap::new();
        for step in steps {
            groups.entry(step.outgoing.topic.clone()).or_default().push(step);
        }
        let mut steps = vec![];
        for group in groups.into_values() {
            steps.extend(self.turn_away_absent(group).await);
        }
        steps
    }

    /// Returns the remaining steps, and whether all of them go to another topic now.
    async fn send_once(&self, member: &Member, steps: Vec<Step>) -> (Vec<Step>, bool) {
        let departures = member.departures();
        let mut steps = self.turn_away_absent(steps).await;
        self.keep_parking_topic(&steps).await;
        // These requests may have taken long. Records of partitions that were lost since belong to
        // another relay.
        if member.departures() != departures {
            steps.retain(|step| member.is_open(step.lease));
        }
        let outbox = match steps.first().map(|step| &step.kind) {
            Some(Kind::Forward(..)) => &self.to_targets,
            _ => &self.to_shelves,
        };
        let answers = outbox.send(&steps).await;
        let (now, mut failed) = (self.clock.now(), vec![]);
        let (mut arrives, mut arrived) = (false, None);
        let mut settling = member.settling();
        for (step, answer) in steps.into_iter().zip(answers) {
            arrives = answer.is_ok();
            match answer {
                Ok(_) => {
                    self.done(&mut settling, &step, now);
                    arrived = Some(step);
                }
                Err(error) => failed.push((step, error)),
            }
        }
        // Failures take longer to handle than the lock may be held.
        drop(settling);
        let (mut left, mut moved) = (vec![], true);
        // All records are for one topic.
        arrived.iter().for_each(|step| self.got_there(step));
        for (step, error) in failed {
            let (step, elsewhere) = self.failed(step, &error, now);
            moved &= elsewhere;
            left.push(step);
        }
        if arrives {
            arrived.iter().for_each(|step| self.got_there(step));
        }
        (left, moved)
    }

    fn got_there(&self, step: &Step) {
        if let Kind::Forward(plan, _) = &step.kind {
            self.targets.succeeded(&plan.target, self.clock.elapsed());
        }
    }

    fn done(&self, settling: &mut Settling<'_>, step: &Step, now: Timestamp) {
        match &step.kind {
            Kind::Forward(plan, _) => self.counts.forwarded(now.since(plan.process_at)),
            Kind::Shelve(_) => self.counts.shelved(),
            Kind::Hold(_) => self.counts.put_back(),
            Kind::Park => self.counts.parked(),
        }
        settling.complete(step.lease);
    }

    /// Diverts records whose target does not exist, because librdkafka would wait for the topic.
    async fn turn_away_absent(&self, steps: Vec<Step>) -> Vec<Step> {
        let Some(Kind::Forward(first, _)) = steps.first().map(|step| &step.kind) else { return steps };
        let target = first.target.clone();
        match self.cluster.partitions(&target).await {
            Ok(None) => {
                let now = self.clock.now();
                steps.into_iter().map(|step| self.absent(step, now)).collect()
            }
            // The send shows whether the topic exists. It does not create the topic.
            _ => steps,
        }
    }

    /// Recreates the parking topic, which people may delete to clear it, and which nothing else
    /// creates while relays run. It is checked each time: few records are parked, and librdkafka
    /// would wait for a missing topic.
    async fn keep_parking_topic(&self, steps: &[Step]) {
        if !steps.iter().any(|step| matches!(step.kind, Kind::Park)) {
            return;
        }
        let topic = self.cluster.settings().relay.parking_topic();
        self.cluster.forget(&topic);
        if let Ok(None) = self.cluster.partitions(&topic).await {
            match topics::check(&self.cluster).await {
                Ok(()) => tracing::warn!(topic, "parking topic was deleted; recreated it"),
                Err(error) => {
                    tracing::error!(%error, topic, "parking topic was deleted and could not be recreated; retrying")
                }
            }
        }
    }

    /// Handles a record that was not stored. Returns its next step, and whether that leads to
    /// another topic.
    fn failed(&self, step: Step, error: &Error, now: Timestamp) -> (Step, bool) {
        let before = step.outgoing.topic.clone();
        let step = self.instead(step, error, now);
        let elsewhere = step.outgoing.topic != before;
        (step, elsewhere)
    }

    fn instead(&self, step: Step, error: &Error, now: Timestamp) -> Step {
        match step.kind {
            // A purge does not depend on the target.
            _ if is_purged(error) => step,
            Kind::Forward(..) if error.kind() == ErrorKind::NotFound => {
                self.cluster.forget(&step.outgoing.topic);
                self.absent(step, now)
            }
            Kind::Forward(plan, _) | Kind::Shelve(plan) | Kind::Hold(plan) if is_of_the_record(error) => {
                self.give_up(step.lease, &plan.record, &step.from, &error.to_string(), now)
            }
            Kind::Forward(mut plan, _) => {
                plan.found();
                // The topic may have been deleted, which librdkafka notices late: check it before
                // the next attempt.
                self.cluster.forget(&plan.target);
                let pause = self.targets.failed(&plan.target, error, self.clock.elapsed());
                self.hold(step.lease, plan, pause, &step.from)
            }
            Kind::Shelve(plan) => {
                self.refused(&step.outgoing.topic, error);
                // Time has passed, so the former level may be too long by now.
                let shelf = self.cluster.settings().relay.shelf_until(plan.remaining(now));
                self.shelve(step.lease, plan, shelf, &step.from)
            }
            Kind::Hold(_) | Kind::Park => {
                self.refused(&step.outgoing.topic, error);
                step
            }
        }
    }

    fn refused(&self, topic: &Text, error: &Error) {
        self.digest.note(Event::Refused { topic: topic.clone() }, || error.to_string());
    }

    /// Handles an absent target, which may be created later.
    fn absent(&self, step: Step, now: Timestamp) -> Step {
        let Kind::Forward(mut plan, _) = step.kind else { return step };
        let settings = &self.cluster.settings().relay;
        let absent = now.since(*plan.absent_since.get_or_insert(now));
        if absent >= settings.absent_for {
            let reason = format!("the target `{}` does not exist", plan.target);
            return self.give_up(step.lease, &plan.record, &step.from, &reason, now);
        }
        self.digest.note(Event::Absent { target: plan.target.clone() }, || step.from.to_string());
        // The pause equals the time of absence: short for a target that is about to be created, and
        // long for one that never is.
        let pause = absent.min(LOOK_AGAIN).min(settings.absent_for - absent);
        let shelf = settings.ladder.fitting_or_shortest(pause);
        let outgoing = plan.put_back(settings.level_topic(shelf));
        Step { outgoing, kind: Kind::Hold(plan), ..step }
    }

    /// Moves a record to a delay topic.
    pub(super) fn shelve(&self, lease: LeaseId, plan: Plan, topic: String, from: &Text) -> Step {
        let (size, outgoing) = (plan.record.size(), plan.shelve(topic));
        Step { lease, size, from: from.clone(), outgoing, kind: Kind::Shelve(plan) }
    }

    /// Puts a record back on a shelf for about as long as its target is paused.
    pub(super) fn hold(&self, lease: LeaseId, plan: Plan, pause: Duration, from: &Text) -> Step {
        let settings = &self.cluster.settings().relay;
        let shelf = settings.ladder.fitting_or_shortest(pause);
        let (size, outgoing) = (plan.record.size(), plan.put_back(settings.level_topic(shelf)));
        Step { lease, size, from: from.clone(), outgoing, kind: Kind::Hold(plan) }
    }

    /// Parks a record.
    pub(super) fn give_up(
        &self,
        lease: LeaseId,
        record: &Record,
        from: &Text,
        reason: &str,
        now: Timestamp,
    ) -> Step {
        let position = || format!("`{from}` partition {} offset {}", record.partition, record.offset);
        self.digest.note(Event::Parked { reason: reason.to_owned() }, position);
        let outgoing = park(record, from, reason, &self.cluster.settings().relay, now);
        Step { lease, size: record.size(), from: from.clone(), outgoing, kind: Kind::Park }
    }
}

/// Returns whether the record is at fault, so that its topic will never accept it. A topic that
/// does not exist may still be created.
fn is_of_the_record(error: &Error) -> bool {
    error.is_of_the_message() && error.kind() != ErrorKind::NotFound
}
