//! Checks a world message by message, and reports the first broken guarantee.
//!
//! The checker uses two independent sources: what handlers and users of the engine requested and
//! saw, and what really happened at the brokers, as recorded by the faulty transport. The engine
//! stands between the two, and the rules here define what it must do.
//!
//! Most rules are counts, kept for each message in each subscription and at each handled count: no
//! more runs than messages placed there, and no more copies than runs requested. Any excess needs a
//! fault that affected this message: each fault explains one.

mod entries;
mod finish;
mod held;
mod placing;
mod running;
mod sending;
mod tally;
mod track;
mod walls;

pub(crate) use finish::Inventory;
pub use tally::Tally;

use crate::{
    life::Who,
    plan::{Plan, Target},
    trace::{Answer, Entry, Event, Fault, How, Request, Service, Settled, Stage, Subject, Touched},
};
use dwell_core::{Address, Changed, MessageId, Timestamp};
use dwell_engine::DeadLetter;
use entries::Entries;
use held::{Delivered, Held};
use sending::Sends;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};
use track::{End, Track};
use walls::Walls;

/// Guarantees of the design that can be checked message by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// 1: no handler starts before the due time, on the clock of the broker or store that holds the
    /// message.
    NeverEarly,
    /// 2: every accepted message comes to an end.
    NeverLost,
    /// 3: no duplicate occurs without a fault.
    DuplicatesExplained,
    /// 4: a delay has the requested length.
    OneMeaningOfDelay,
    /// 5: a deferred message returns only to the subscription that deferred it.
    BackToTheOneWhoDeferred,
    /// 6: the counts are correct, and their limits hold.
    BudgetsHold,
    /// 7: records and results shown to people are true.
    Visible,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverEarly => "1, never early",
            Self::NeverLost => "2, never lost",
            Self::DuplicatesExplained => "3, duplicates explained",
            Self::OneMeaningOfDelay => "4, one meaning of delay",
            Self::BackToTheOneWhoDeferred => "5, back to the one who deferred",
            Self::BudgetsHold => "6, budgets hold",
            Self::Visible => "7, visible and controllable",
        })
    }
}

/// A broken guarantee.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The guarantee.
    pub promise: Promise,
    /// The message.
    pub id: MessageId,
    /// Description of the violation.
    pub text: String,
    /// Time since the start of the world.
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: message {}: {} (at {:?})", self.promise, self.id, self.text, self.at)
    }
}

/// Copies of one message that one process makes, to one address and with one count.
#[derive(Clone, Copy, Debug, Default)]
struct Copies {
    /// Number of runs and deliveries that may have caused one.
    allowed: u32,
    confirmed: u32,
}

pub(crate) struct Checker {
    plan: Arc<Plan>,
    walls: Walls,
    tracks: BTreeMap<(Subject, Address), Track>,
    /// Messages that have not ended since they were last placed.
    open: BTreeSet<(Subject, Address)>,
    entries: Entries,
    held: Held,
    runs: BTreeMap<usize, (Subject, Address, track::RunInfo)>,
    /// Copies that a process may make, and copies confirmed to it.
    copies: BTreeMap<(Who, Subject, Address, u32), Copies>,
    requests: BTreeMap<(usize, usize), (Duration, Request)>,
    sends: Sends,
    /// When something that waited under an id was last changed.
    changed: BTreeMap<MessageId, Duration>,
    /// Lives in which a call failed.
    troubled: BTreeSet<Who>,
    tally: Tally,
    violation: Option<Violation>,
    now: Duration,
    wall: Timestamp,
}

impl Checker {
    pub(crate) fn new(plan: &Arc<Plan>, start: Timestamp) -> Self {
        Self {
            plan: plan.clone(),
            walls: Walls::new(start),
            tracks: BTreeMap::new(),
            open: BTreeSet::new(),
            entries: Entries::default(),
            held: Held::default(),
            runs: BTreeMap::new(),
            copies: BTreeMap::new(),
            requests: BTreeMap::new(),
            sends: Sends::default(),
            changed: BTreeMap::new(),
            troubled: BTreeSet::new(),
            tally: Tally::default(),
            violation: None,
            now: Duration::ZERO,
            wall: start,
        }
    }

    /// Returns the first violation.
    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Returns whether every accepted message has ended.
    pub(crate) fn all_ended(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether any message is due after this time.
    pub(crate) fn any_due_after(&self, wall: Timestamp) -> bool {
        self.entries.any_due_after(wall)
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    fn broken(&mut self, promise: Promise, id: &MessageId, text: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(Violation { promise, id: id.clone(), text: text.into(), at: self.now });
        }
    }

    fn has_sessions(&self) -> bool {
        matches!(self.plan.target, Target::Log(_))
    }

    pub(crate) fn observe(&mut self, entry: &Entry) {
        (self.now, self.wall) = (entry.at, entry.wall);
        match &entry.event {
            Event::Note(_) => {}
            Event::Life(who, stage) => self.life(*who, *stage),
            Event::Step(_) => {
                self.tally.fault(Fault::ClockStep);
                self.walls.set(entry.at, entry.wall);
            }
            Event::Fault { fault, who, touched, .. } => {
                self.tally.fault(*fault);
                self.troubled.extend(*who);
                touched.iter().for_each(|touched| self.touch(touched));
            }
            Event::Impaired(who, of, on) => {
                self.held.impair(*who, of, *on);
                if *on {
                    let held = self.held.of_subscription(*who, of);
                    held.iter().for_each(|held| self.touch_delivered(held));
                }
            }
            Event::Membership(of) => {
                let again = self.held.uncommitted(of);
                again.iter().for_each(|delivered| self.touch_delivered(delivered));
            }
            Event::Asked(number, item, _, request) => {
                self.requests.insert((*number, *item), (self.now, request.clone()));
            }
            Event::Answered(number, item, answer) => self.answered((*number, *item), answer),
            Event::Placed(placed) => self.placed(placed),
            Event::Confirmed { who, subject, to, handled, asked } => {
                if !asked {
                    self.copies(*who, subject, to, *handled).confirmed += 1;
                }
            }
            Event::Received(received) => self.received(received),
            Event::Settled(settled) => self.settled(settled),
            Event::GaveBack(who, consumer, of) => {
                let is_troubled = self.troubled.contains(who);
                for held in self.held.take_consumer(*who, *consumer, of) {
                    self.give_back(&held, of);
                    // Its settlement may have been blocked by another one that failed.
                    if is_troubled {
                        self.touch_delivered(&held);
                    }
                }
            }
            Event::Dropped(who, consumer, of) => {
                for held in self.held.take_consumer(*who, *consumer, of) {
                    if self.troubled.contains(who) {
                        self.touch_delivered(&held);
                    }
                }
            }
            Event::SendBegun(begun) => self.send_begun(begun),
            Event::SendEnded(subject, to, sent) => self.sends.ended(subject, to, *sent),
            Event::Cancelled(service, id, changed) => self.cancelled(*service, id, *changed),
            Event::Rescheduled(service, id, due, changed) => {
                if *changed == Changed::Done {
                    self.changed.insert(id.clone(), self.now);
                    let due = due.resolve(self.wall.into());
                    self.entries.reschedule(*service, id, due, &self.walls, self.now);
                } else {
                    self.check_answer(*service, id, "rescheduled", *changed);
                }
            }
            Event::Run(run) => self.run(run),
            Event::Ended(run, ending) => self.ended(*run, *ending),
        }
    }

    fn copies(&mut self, who: Who, subject: &Subject, to: &Address, handled: u32) -> &mut Copies {
        self.copies.entry((who, subject.clone(), to.clone(), handled)).or_default()
    }

    fn track(&mut self, subject: &Subject, of: &Address) -> &mut Track {
        self.tracks.entry((subject.clone(), of.clone())).or_default()
    }

    /// Updates whether a message has ended.
    fn note_end(&mut self, subject: &Subject, of: &Address) {
        let key = (subject.clone(), of.clone());
        if self.tracks.get(&key).is_none_or(Track::has_ended) {
            self.open.remove(&key);
        } else {
            self.open.insert(key);
        }
    }

    fn end(&mut self, subject: &Subject, of: &Address, end: End) {
        let now = self.now;
        self.track(subject, of).end(now, end);
        self.tally.end(end);
        self.note_end(subject, of);
    }

    /// Records that a fault may cause a redelivery of this message, at any destination.
    fn touch(&mut self, touched: &Touched) {
        for of in self.plan.reached(&touched.to) {
            self.track(&touched.subject, &of).faults += 1;
        }
    }

    fn touch_delivered(&mut self, delivered: &Delivered) {
        let Delivered { subject, to, .. } = delivered.clone();
        self.touch(&Touched { subject, to });
    }

    fn life(&mut self, who: Who, stage: Stage) {
        if matches!(stage, Stage::Crashed | Stage::Paused) {
            self.held.of(who).iter().for_each(|held| self.touch_delivered(held));
        }
        match stage {
            Stage::Crashed => {
                self.tally.fault(Fault::Crash);
                self.held.drop_process(who);
            }
            Stage::Paused => self.tally.fault(Fault::Pause),
            Stage::Stopped => {
                // Messages that it could not release in order return when their leases have
                // expired.
                if self.troubled.contains(&who) {
                    self.held.of(who).iter().for_each(|held| self.touch_delivered(held));
                }
                self.held.drop_process(who);
            }
            _ => {}
        }
    }

    fn answered(&mut self, number: (usize, usize), answer: &Answer) {
        let Some((asked, request)) = self.requests.get(&number).cloned() else { return };
        match (request, answer) {
            (Request::Send { subject, to, once, .. }, Answer::Sent(_)) => {
                self.tally.sent += 1;
                if once.is_some() {
                    self.check_recorded(number.0, &subject, &to);
                }
                if !self.entries.is_known(&subject, &to) {
                    let text = format!("the send to {to} returned Ok, but no service accepted the message");
                    self.broken(Promise::NeverLost, &subject.id, text);
                }
            }
            (Request::Cancel(id), Answer::Changed(changed)) => {
                self.check_changed(&id, asked, *changed);
                if let Some(left) = self.entries.left_of(&id, asked, &self.walls, self.now) {
                    let text = format!("it was cancelled ({changed:?}), but {left} is still pending");
                    self.broken(Promise::Visible, &id, text);
                }
            }
            (Request::Reschedule(id, _), Answer::Changed(changed)) => {
                self.check_changed(&id, asked, *changed)
            }
            (_, Answer::Replayed(count)) => self.tally.replayed += *count as u64,
            _ => {}
        }
    }

    /// Checks that a change reported as done was made.
    fn check_changed(&mut self, id: &MessageId, asked: Duration, changed: Changed) {
        let is_done = self.changed.get(id).is_some_and(|at| *at >= asked);
        if changed == Changed::Done && !is_done {
            self.broken(Promise::Visible, id, "a change returned Done, but no entry was changed");
        }
    }

    fn settled(&mut self, settled: &Settled) {
        let Settled { service, who, subscription, subject, lease, .. } = settled;
        let (held, is_latest) = self.held.settle(*who, *service, subscription, *lease);
        if !is_latest {
            let text =
                format!("{subscription} accepted a receipt that was stale because of a later delivery");
            self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
        match (settled.how, held) {
            (How::Release, Some(held)) => self.give_back(&held, subscription),
            (How::Ack, _) => self.check_quarantine(settled),
            _ => {}
        }
    }

    /// Handles a quarantined message, which is given up without a run: without a channel it is
    /// discarded.
    fn check_quarantine(&mut self, settled: &Settled) {
        let Some(settings) = self.plan.settings(&settled.subscription) else { return };
        let limit = settings.quarantine_after.unwrap_or(10);
        let is_poison = limit > 0 && settled.deliveries.is_some_and(|deliveries| deliveries > limit);
        if is_poison && settings.dead_letter == DeadLetter::Discard {
            self.end(&settled.subject, &settled.subscription, End::Discarded);
        }
    }

    /// Records that the broker returned a delivery unchanged: a handler of this subscription may
    /// run it again.
    fn give_back(&mut self, held: &Delivered, of: &Address) {
        if held.to == *of {
            self.track(&held.subject, of).level(held.handled).given_back += 1;
        }
    }

    fn cancelled(&mut self, service: Service, id: &MessageId, changed: Changed) {
        if changed != Changed::Done {
            return self.check_answer(service, id, "cancelled", changed);
        }
        self.changed.insert(id.clone(), self.now);
        let (sure, unsure) = self.entries.cancel(service, id, self.wall, &self.walls, self.now);
        for entry in &sure {
            self.gone(entry);
        }
        for entry in &unsure {
            for of in self.plan.clone().reached(&entry.to) {
                self.track(&entry.subject, &of).unsure = true;
            }
        }
        for entry in sure.iter().chain(&unsure) {
            for of in self.plan.clone().reached(&entry.to) {
                self.end(&entry.subject, &of, End::Cancelled);
            }
        }
    }

    /// Checks that a pending message is not reported as unknown or gone.
    fn check_answer(&mut self, service: Service, id: &MessageId, what: &str, changed: Changed) {
        if self.entries.surely_waits(service, id, &self.walls, self.now) {
            let text = format!("{id} is pending in the {service}, but was not {what}: {changed:?}");
            self.broken(Promise::Visible, id, text);
        }
    }
}
