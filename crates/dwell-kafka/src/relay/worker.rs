//! Empties one delay topic. Records leave a level after they have waited for its length; records on
//! their last stretch are forwarded on the millisecond.
//!
//! A record is committed only after its next place has confirmed it ([`super::passing`]). A crash
//! in between duplicates the record and never loses it. Records do not wait in line: each target is
//! sent to separately, and the records of an unavailable target are put back on a shelf, so that
//! they hold up neither the commit nor the memory.
//!
//! On the last stretch records leave in another order than they arrived, and the mark stays before
//! the first pending one. The metadata of the commit lists the records that were sent above the
//! mark, so that the next relay does not send them again. If there are more than the metadata can
//! list, pending records are rewritten to the topic before their partition goes to another relay.
//!
//! With transactions, a forwarded record and its offset become visible together. Each delay topic
//! has one transaction at a time.

use super::{
    Joiner, RelaySettings,
    budget::Part,
    digest::Event,
    hop::Plan,
    passing::{Kind, Load, Shared, Step},
    suspension::Suspension,
    topics::Level,
};
use crate::{
    group::{Member, Taken},
    outbox::Outbox,
    record::Record,
};
use dwell_core::{BoxFuture, LeaseId, Result, Text, Timestamp, wheel::Wheel};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Number of records processed at a time: few enough that the first are in flight while the next
/// are prepared.
const BATCH: usize = 1_000;
/// Number of records in one transaction.
const PER_TRANSACTION: usize = 10_000;
/// Number of records in flight at one time.
const ON_THEIR_WAY: usize = 50_000;
/// Part of them, and of the bytes of the read-ahead, that may be in flight to one target that does
/// not answer. Levels may have half of the read-ahead, and all such targets together two of these
/// shares.
const SHARE: usize = 8;
/// How long a worker that stops waits for records in flight.
const LAST_PATIENCE: Duration = Duration::from_secs(8);
/// How long no record may be confirmed before the worker checks that commits succeed.
const CHECK: Duration = Duration::from_millis(50);
/// Longest time without a check for records.
const SAFETY_TICK: Duration = Duration::from_secs(5);

/// Returns the limit of what may be in flight to one target that does not answer.
pub(super) fn share(settings: &RelaySettings) -> Load {
    let (count, bytes) = settings.read_ahead;
    Load { count: ON_THEIR_WAY.min(count).div_ceil(SHARE), bytes: bytes.div_ceil(SHARE) }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    joiner: Joiner,
    member: Arc<Member>,
    level: Level,
    /// Records on the last stretch, which wait in memory.
    wheel: Wheel<Box<Waiting>>,
    /// Their load.
    held: Part,
    /// Target of the last record put into the wheel. The next one mostly has the same target, and
    /// shares its name.
    target: Text,
    /// Number of departures of partitions that were handled.
    departures: u64,
    suspension: Suspension,
    on_their_way: FuturesUnordered<BoxFuture<'static, Result<Load>>>,
    /// Load of records that are in flight or queued.
    sending: Part,
    /// The producer for transactions, if they are enabled.
    transactions: Option<Arc<Outbox>>,
    /// Records for the next transaction.
    queued: Vec<Step>,
    /// When commits were last checked.
    checked: Option<Duration>,
}

/// A record that waits in memory.
struct Waiting {
    lease: LeaseId,
    plan: Plan,
    size: usize,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        joiner: Joiner,
        member: Arc<Member>,
        level: Level,
        transactions: Option<Arc<Outbox>>,
    ) -> Self {
        let on_their_way = FuturesUnordered::new();
        let (held, sending) = (shared.budget.part(), shared.budget.part());
        let suspension = Suspension::new(shared.clock.now());
        Self {
            shared,
            joiner,
            member,
            level,
            wheel: Wheel::new(),
            held,
            target: Text::from(""),
            departures: 0,
            suspension,
            on_their_way,
            sending,
            transactions,
            queued: vec![],
            checked: None,
        }
    }

    /// Works until it is stopped. Then it finishes records in flight, commits and leaves.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let result = loop {
            let next = match self.look() {
                Ok(next) => next,
                Err(_) if self.member.has_ended() => match self.rejoin() {
                    Ok(()) => continue,
                    Err(error) => break Err(error),
                },
                Err(error) => break Err(error),
            };
            let clock = self.shared.clock.clone();
            let until = async {
                match next {
                    Some(time) => clock.sleep_until(time).await,
                    None => clock.tick(SAFETY_TICK).await,
                }
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break Ok(()),
                Some(sent) = self.on_their_way.next(), if !self.on_their_way.is_empty() => match sent {
                    Ok(sent) => self.sending.remove(sent),
                    Err(error) => break Err(error),
                },
                () = self.member.stirred() => {}
                () = until => {}
            }
        };
        self.give_back(|_, _| true);
        let mut patience = self.shared.clock.sleep(LAST_PATIENCE);
        while !self.on_their_way.is_empty() {
            tokio::select! {
                biased;
                Some(sent) = self.on_their_way.next() => if sent.is_ok() {
                    self.transact();
                },
                () = &mut patience => break,
            }
        }
        if let Some(outbox) = &self.transactions {
            outbox.close().await;
        }
        self.member.close().await;
        result
    }

    /// Replaces a member whose client did not recover. Its leases are stale.
    fn rejoin(&mut self) -> Result<()> {
        self.give_back(|_, _| true);
        self.member = Arc::new(self.joiner.join(&self.level)?);
        self.departures = self.member.departures();
        Ok(())
    }

    fn settings(&self) -> &RelaySettings {
        &self.shared.cluster.settings().relay
    }

    /// Passes on all records that may leave now. Returns when the next one may.
    fn look(&mut self) -> Result<Option<Timestamp>> {
        let now = self.shared.clock.now();
        let departures = self.member.departures();
        if std::mem::replace(&mut self.departures, departures) != departures {
            self.give_back(Member::is_leaving);
            self.shared.purge_if_silent();
        }
        if let Some(gap) = self.suspension.look(now, self.shared.cluster.settings().session) {
            self.shared.digest.note(Event::Suspended, || format!("for {gap:?}"));
        }
        if let Some(until) = self.suspension.paused_until(now) {
            return Ok(Some(until));
        }
        self.check_commits();
        self.transact();
        self.shared.counts.lags(&self.level.topic, self.member.lag());
        self.shared.counts.serves(&self.level.topic, self.member.trouble());
        match self.level.wait {
            Some(wait) => self.look_at_level(wait, now),
            None => self.look_at_due(now),
        }
    }

    /// Handles the topic of a level. A record leaves when the level has passed since it was
    /// appended. Append times only grow within a partition, so no record waits behind one that has
    /// to wait longer. A record that is due before it could be read from another topic waits here,
    /// in memory.
    fn look_at_level(&mut self, wait: Duration, now: Timestamp) -> Result<Option<Timestamp>> {
        let mut next: Option<Timestamp> = None;
        let room = self.room();
        let hop = self.settings().hop();
        // Records that wait in memory do not hold up records that only pass through.
        let (mut taking, beside) = (self.shared.budget.part(), self.sending.load());
        let half = self.shared.budget.half();
        let taken = self.member.take(room, &mut |record| {
            let leaves = leaves(record, wait).unwrap_or(now);
            if leaves > now {
                next = Some(next.map_or(leaves, |next| next.min(leaves)));
            }
            leaves <= now && taking.try_add(record.size(), beside, half)
        })?;
        // There may be more records, which must not wait.
        let more = taken.len() == room && room > 0;
        let mut steps = vec![];
        for Taken { lease, record, .. } in taken {
            let left = leaves(&record, wait);
            match self.plan(record, &mut taking) {
                Ok(plan) => {
                    let late = left.map(|left| left.since(plan.process_at)).unwrap_or_default();
                    // A sender whose delay equals the level cannot know how long appending takes.
                    if late > hop && !plan.was_put_back {
                        self.shared.counts.overstayed();
                        let (topic, target) = (self.level.topic.clone(), plan.target.clone());
                        let event = Event::Overstayed { topic, target };
                        self.shared.digest.note(event, || format!("late by {late:?}"));
                    }
                    let remaining = plan.remaining(now);
                    let waits = !remaining.is_zero() && remaining <= hop;
                    let (size, beside) = (plan.record.size(), self.sending.load());
                    if waits && taking.try_pass(&mut self.held, size, beside, half) {
                        self.hold(lease, plan);
                    } else {
                        steps.push(self.step(lease, plan, now));
                    }
                }
                Err(refused) => steps.push(self.park(lease, &refused.1, &refused.0, now)),
            }
        }
        let next_held = self.let_go(now, &mut steps, &mut taking);
        self.send(steps, &mut taking);
        let next = next.into_iter().chain(next_held).min();
        Ok(if more { Some(now) } else { next })
    }

    /// Handles the topic of the last stretch. As many records as permitted wait in memory; the rest
    /// stays in the topic.
    fn look_at_due(&mut self, now: Timestamp) -> Result<Option<Timestamp>> {
        let beside = self.held.load().plus(self.sending.load());
        let (mut taking, whole) = (self.shared.budget.part(), self.shared.budget.whole());
        let taken = self.member.take(BATCH, &mut |record| taking.try_add(record.size(), beside, whole))?;
        let more = taken.len() == BATCH;
        let mut steps = vec![];
        for Taken { lease, record, .. } in taken {
            match self.plan(record, &mut taking) {
                Ok(plan) if self.settings().is_last_stretch(plan.remaining(now)) => {
                    taking.pass(&mut self.held, Load { count: 1, bytes: plan.record.size() });
                    self.hold(lease, plan);
                }
                Ok(plan) => steps.push(self.step(lease, plan, now)),
                Err(refused) => steps.push(self.park(lease, &refused.1, &refused.0, now)),
            }
        }
        let next = self.let_go(now, &mut steps, &mut taking);
        self.send(steps, &mut taking);
        Ok(if more { Some(now) } else { next })
    }

    /// Commits the same offset again while nothing is confirmed. In that case nothing is completed
    /// and committed either, so a broker that hangs would not be noticed. If the commit does not
    /// succeed, nothing more is sent.
    fn check_commits(&mut self) {
        let now = self.shared.clock.elapsed();
        let is_due = self.checked.is_none_or(|checked| now.saturating_sub(checked) >= CHECK * 2);
        if is_due && self.transactions.is_none() && self.shared.silence() >= CHECK {
            self.checked = Some(now);
            self.member.check_commits();
        }
    }

    /// Reads the plan of a record, and corrects its size, which reading changes a little.
    fn plan(&self, record: Record, taking: &mut Part) -> Result<Plan, Box<(String, Record)>> {
        let before = record.size();
        let plan = Plan::read(record, self.settings());
        let record = match &plan {
            Ok(plan) => &plan.record,
            Err(refused) => &refused.1,
        };
        taking.resize(before, record.size());
        plan
    }

    /// Returns the number of records that may be sent now.
    fn room(&self) -> usize {
        let Load { count, bytes } = self.sending.load();
        let has_room = bytes < self.settings().read_ahead.1;
        if has_room { ON_THEIR_WAY.saturating_sub(count).min(BATCH) } else { 0 }
    }

    /// Keeps a record in memory until it is due. Its load is already in `held`.
    fn hold(&mut self, lease: LeaseId, mut plan: Plan) {
        if plan.target == self.target {
            plan.target = self.target.clone();
        } else {
            self.target = plan.target.clone();
        }
        let size = plan.record.size();
        self.shared.counts.holds_more(1);
        self.wheel.insert(plan.process_at, Box::new(Waiting { lease, plan, size }));
    }

    /// Adds the steps of pending records that are due, and returns when the next one is. While a
    /// commit does not succeed, none is sent, because another relay may have to send it again.
    fn let_go(&mut self, now: Timestamp, steps: &mut Vec<Step>, taking: &mut Part) -> Option<Timestamp> {
        let room = self.room();
        if room == 0 || self.member.is_stuck() {
            return None;
        }
        let mut due = vec![];
        self.wheel.pop_due(now, room, &mut due);
        self.shared.counts.holds_less(due.len());
        for (_, waiting) in due {
            // Records of lost partitions belong to another relay.
            let load = Load { count: 1, bytes: waiting.size };
            if !self.member.is_open(waiting.lease) {
                self.held.remove(load);
            } else {
                self.held.pass(taking, load);
                steps.push(self.step(waiting.lease, waiting.plan, now));
            }
        }
        self.wheel.next_due()
    }

    /// Releases pending records for the next relay. Records that it could not tell from sent ones
    /// are rewritten to the topic.
    fn give_back(&mut self, of: impl Fn(&Member, LeaseId) -> bool) {
        let released = |step: &mut Step| of(&self.member, step.lease) && self.member.release(step.lease);
        for step in self.queued.extract_if(.., released) {
            self.sending.remove(Load::of(std::slice::from_ref(&step)));
        }
        let leaving = self.wheel.iter().filter(|(_, _, waiting)| of(&self.member, waiting.lease));
        let keys: Vec<_> = leaving.map(|(key, ..)| key).collect();
        let waiting: Vec<_> = keys.into_iter().filter_map(|key| self.wheel.cancel(key)).collect();
        self.shared.counts.holds_less(waiting.len());
        let (mut steps, mut taking) = (vec![], self.shared.budget.part());
        for Waiting { lease, plan, size } in waiting.into_iter().map(|waiting| *waiting) {
            self.held.pass(&mut taking, Load { count: 1, bytes: size });
            // Records of lost partitions belong to another relay.
            if self.member.is_open(lease) && !self.member.release(lease) {
                steps.push(self.shared.shelve(lease, plan, self.settings().due_topic(), &self.level.topic));
            }
        }
        self.send(steps, &mut taking);
    }

    /// Returns the step of a record that leaves its level now.
    fn step(&self, lease: LeaseId, plan: Plan, now: Timestamp) -> Step {
        let remaining = plan.remaining(now);
        if !remaining.is_zero() {
            return self.shared.shelve(
                lease,
                plan,
                self.settings().shelf_until(remaining),
                &self.level.topic,
            );
        }
        match self.shared.targets.admit(&plan.target, plan.record.size(), self.shared.clock.elapsed()) {
            Err(pause) => self.shared.hold(lease, plan, pause, &self.level.topic),
            Ok(pass) => {
                let (size, outgoing) = (plan.record.size(), plan.forward());
                Step {
                    lease,
                    size,
                    from: self.level.topic.clone(),
                    outgoing,
                    kind: Kind::Forward(plan, pass),
                }
            }
        }
    }

    fn park(&self, lease: LeaseId, record: &Record, reason: &str, now: Timestamp) -> Step {
        self.shared.give_up(lease, record, &self.level.topic, reason, now)
    }

    /// Passes records on, each destination separately, or queues them for one transaction. Their
    /// load was part of `taking`.
    fn send(&mut self, steps: Vec<Step>, taking: &mut Part) {
        taking.pass(&mut self.sending, Load::of(&steps));
        if self.transactions.is_some() {
            self.queued.extend(steps);
            return self.transact();
        }
        let mut groups: BTreeMap<Text, Vec<Step>> = BTreeMap::new();
        for step in steps {
            groups.entry(step.outgoing.topic.clone()).or_default().push(step);
        }
        for group in groups.into_values() {
            let load = Load::of(&group);
            let (shared, member) = (self.shared.clone(), self.member.clone());
            self.on_their_way.push(Box::pin(async move {
                shared.pass_on(&member, group).await;
                Ok(load)
            }));
        }
    }

    /// Begins the next transaction, unless one is running.
    fn transact(&mut self) {
        let Some(outbox) = self.transactions.clone() else { return };
        if self.queued.is_empty() || !self.on_their_way.is_empty() {
            return;
        }
        let steps: Vec<_> = self.queued.drain(..self.queued.len().min(PER_TRANSACTION)).collect();
        let (shared, member) = (self.shared.clone(), self.member.clone());
        self.on_their_way.push(Box::pin(async move {
            let load = Load::of(&steps);
            shared.pass_on_at_once(&member, &outbox, steps).await?;
            Ok(load)
        }));
    }
}

/// Returns when a record leaves its level. `None` for a record with a creation time, which does not
/// show when it was appended: such times are in no order and may lie in the future. The record
/// leaves at once, and waits in the level that fits its own due time.
fn leaves(record: &Record, wait: Duration) -> Option<Timestamp> {
    record.timestamp.filter(|_| record.has_append_time).map(|appended| appended.after(wait))
}
