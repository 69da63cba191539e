//! One delay topic, emptied: records leave their level when they have waited for it, and the last stretch on the
//! millisecond.
//!
//! A record counts for the commit only after it lies, confirmed, wherever it goes next ([`super::passing`]); a crash in between
//! sends it twice, and never not at all. Nothing is waited for in line: what is for one target goes by itself, and a target that is away
//! has its records put back on a shelf, so that they hold up neither the commit nor the memory.
//!
//! On the last stretch records leave in another order than they came in, and the mark stays behind the first that still
//! waits; what was sent above it is said beside the mark, so that the next relay does not send it again. Where that is more
//! than can be said there, what still waits is written to the topic anew before its partition goes to another relay.
//!
//! Within transactions, a record and the offset that says where it went become visible together. There is one transaction
//! at a time for each delay topic.

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

/// Records looked at in one go: few enough that the first are on their way while the next are made ready.
const BATCH: usize = 1_000;
/// Records sent on in one transaction.
const PER_TRANSACTION: usize = 10_000;
/// Records on their way at one time.
const ON_THEIR_WAY: usize = 50_000;
/// What part of them, and of the bytes of the read-ahead, may be in flight to one target that does not answer. Levels may have
/// half of the read-ahead, and all such targets together two of these shares.
const SHARE: usize = 8;
/// How long a worker that stops waits for what is on its way.
const LAST_PATIENCE: Duration = Duration::from_secs(8);
/// How long nothing may be confirmed before it is checked that commits come through.
const CHECK: Duration = Duration::from_millis(50);
/// Looks again after this, whatever was heard.
const SAFETY_TICK: Duration = Duration::from_secs(5);

/// Limit of what may be in flight to one target that does not answer.
pub(super) fn share(settings: &RelaySettings) -> Load {
    let (count, bytes) = settings.read_ahead;
    Load { count: ON_THEIR_WAY.min(count).div_ceil(SHARE), bytes: bytes.div_ceil(SHARE) }
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    joiner: Joiner,
    member: Arc<Member>,
    level: Level,
    /// What waits in memory, on the last stretch: little else than a lease and a record each.
    wheel: Wheel<Box<Waiting>>,
    /// How much that is.
    held: Part,
    /// The target of what was last put into it: the next one is mostly for the same, and shares its name.
    target: Text,
    /// The partitions that were taken away, as far as that was looked after.
    departures: u64,
    suspension: Suspension,
    on_their_way: FuturesUnordered<BoxFuture<'static, Result<Load>>>,
    /// How much that is, and what is queued.
    sending: Part,
    /// Who sends within transactions, if that is wanted.
    transactions: Option<Arc<Outbox>>,
    /// What is for the next transaction.
    queued: Vec<Step>,
    /// When it was last checked that commits come through.
    checked: Option<Duration>,
    /// Whether records were handed over since then.
    is_unchecked: bool,
    /// Whether commits did not come through when it last looked.
    was_stuck: bool,
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
            is_unchecked: false,
            was_stuck: false,
        }
    }

    /// Works until told to stop; then finishes what is on its way, commits and leaves.
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

    /// The client did not recover: another one takes its place. What it held is no longer ours.
    fn rejoin(&mut self) -> Result<()> {
        self.give_back(|_, _| true);
        self.member = Arc::new(self.joiner.join(&self.level)?);
        self.departures = self.member.departures();
        Ok(())
    }

    fn settings(&self) -> &RelaySettings {
        &self.shared.cluster.settings().relay
    }

    /// Sends on all that may go now. Returns when the next one may.
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
        self.purge_if_stuck();
        self.transact();
        self.shared.counts.lags(&self.level.topic, self.member.lag());
        self.shared.counts.serves(&self.level.topic, self.member.trouble());
        match self.level.wait {
            Some(wait) => self.look_at_level(wait, now),
            None => self.look_at_due(now),
        }
    }

    /// A record leaves when its level has passed since it was appended. Times of appending only grow within a partition,
    /// so that none waits behind one that has to wait for longer. What is due before it could be read anywhere else waits
    /// here, in memory.
    fn look_at_level(&mut self, wait: Duration, now: Timestamp) -> Result<Option<Timestamp>> {
        let mut next: Option<Timestamp> = None;
        let room = self.room();
        let hop = self.settings().hop();
        // What waits here in memory holds up nothing that only passes through.
        let (mut taking, beside) = (self.shared.budget.part(), self.sending.load());
        let half = self.shared.budget.half();
        let taken = self.member.take(room, &mut |record| {
            let leaves = leaves(record, wait).unwrap_or(now);
            if leaves > now {
                next = Some(next.map_or(leaves, |next| next.min(leaves)));
            }
            leaves <= now && taking.try_add(record.size(), beside, half)
        })?;
        // There may be more, which is not to wait for anything.
        let more = taken.len() == room && room > 0;
        let mut steps = vec![];
        for Taken { lease, record, .. } in taken {
            let left = leaves(&record, wait);
            match self.plan(record, &mut taking) {
                Ok(plan) => {
                    let late = left.map(|left| left.since(plan.process_at)).unwrap_or_default();
                    // A sender that waits as long as the level cannot know how long it takes to be appended.
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

    /// Records wait in memory, as many as may; the rest stays in the topic.
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

    /// While nothing is confirmed, nothing is completed and committed either, and a broker that hangs is not noticed: hence a
    /// commit of what is committed, once for all that was handed over before. If that does not come through, nothing more is sent.
    fn check_commits(&mut self) {
        let now = self.shared.clock.elapsed();
        let is_due = self.checked.is_none_or(|checked| now.saturating_sub(checked) >= CHECK * 2);
        if is_due && self.is_unchecked && self.shared.silence() >= CHECK {
            (self.checked, self.is_unchecked) = (Some(now), false);
            self.member.check_commits();
        }
    }

    /// When commits begin not to come through, another relay may get the partitions, and has to send again all that is sent
    /// from now on: what waits in the producers is not sent.
    fn purge_if_stuck(&mut self) {
        let was_stuck = std::mem::replace(&mut self.was_stuck, self.member.is_stuck());
        if self.was_stuck && !was_stuck && self.transactions.is_none() && !self.on_their_way.is_empty() {
            self.shared.purge();
        }
    }

    /// What becomes of a record that was taken. That is a little larger or smaller than what came.
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

    /// How many more may be sent on now.
    fn room(&self) -> usize {
        let Load { count, bytes } = self.sending.load();
        let has_room = bytes < self.settings().read_ahead.1;
        if has_room { ON_THEIR_WAY.saturating_sub(count).min(BATCH) } else { 0 }
    }

    /// Keeps a record in memory until it is due. That it is there is counted.
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

    /// What waited in memory and is due. Returns when the next one is. While a commit does not come through, another relay
    /// may have to send again whatever is sent now.
    fn let_go(&mut self, now: Timestamp, steps: &mut Vec<Step>, taking: &mut Part) -> Option<Timestamp> {
        let room = self.room();
        if room == 0 || self.member.is_stuck() {
            return None;
        }
        let mut due = vec![];
        self.wheel.pop_due(now, room, &mut due);
        self.shared.counts.holds_less(due.len());
        for (_, waiting) in due {
            // What was lost meanwhile is another relay's.
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

    /// Lets go of what still waits, for the next relay; what that one could not tell from what was sent already is written
    /// to the topic anew.
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
            // What was lost meanwhile is another relay's.
            if self.member.is_open(lease) && !self.member.release(lease) {
                steps.push(self.shared.shelve(lease, plan, self.settings().due_topic(), &self.level.topic));
            }
        }
        self.send(steps, &mut taking);
    }

    /// What becomes of a record that leaves its level now.
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

    /// Sends on, each destination by itself, or what there is in one transaction. They were a part of what was taken.
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
        self.is_unchecked |= !groups.is_empty();
        for group in groups.into_values() {
            let load = Load::of(&group);
            let (shared, member) = (self.shared.clone(), self.member.clone());
            self.on_their_way.push(Box::pin(async move {
                shared.pass_on(&member, group).await;
                Ok(load)
            }));
        }
    }

    /// Begins the next transaction, if none runs.
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

/// Returns when a record leaves its level. A creation time does not say when it was appended: it grows in no order, and may lie
/// in the future. Such a record leaves at once, and waits on the level that fits its own time.
fn leaves(record: &Record, wait: Duration) -> Option<Timestamp> {
    record.timestamp.filter(|_| record.has_append_time).map(|appended| appended.after(wait))
}
