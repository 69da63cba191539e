//! Requests and faults with their times.

use super::{ProcessPlan, Target, TopicPlan};
use crate::{
    dice::Dice,
    trace::{Service, Subject},
};
use dwell_core::{Address, Due, MessageId, OnConflict, Text, Timestamp};
use std::time::Duration;

/// Due time in the plan, which does not know the time of the send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Now,
    After(Duration),
    /// Milliseconds from the time of the send.
    At(i64),
}

impl When {
    pub(crate) fn due(self, now: Timestamp) -> Due {
        match self {
            Self::Now => Due::NOW,
            Self::After(delay) => Due::After(delay),
            Self::At(offset) => Due::At(Timestamp(now.0.saturating_add(offset))),
        }
    }
}

/// Planned request of the workload.
#[derive(Clone, Debug)]
pub(crate) enum Planned {
    /// Sends all of these at once; the number is the sender's retries for those that fail.
    Send(Vec<Sending>, u32),
    Cancel(MessageId),
    Reschedule(MessageId, When),
    Replay(Text),
}

/// Planned message.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) subject: Subject,
    pub(crate) to: Address,
    pub(crate) when: When,
    pub(crate) once: Option<OnConflict>,
    pub(crate) key: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Request(usize, Planned),
    Crash(usize),
    Pause(usize, Duration),
    /// Stops the process in order, and starts it again.
    Restart(usize),
    Step(i64),
    Outage(Service, Duration),
    DropSession(usize),
    /// Its pumps start no messages for a while.
    PausePumps(usize, Duration),
    /// Restarts performers that have stopped.
    RestartPumps,
}

pub(super) fn draw(
    dice: &Dice,
    target: Target,
    topics: &[TopicPlan],
    processes: &[ProcessPlan],
    window: Duration,
    faults: bool,
) -> Vec<(Duration, Happening)> {
    let mut timeline = requests(&dice.fork("requests"), target, topics, processes.len(), window);
    troubles(&dice.fork("troubles"), target, processes.len(), window, faults, &mut timeline);
    // A stable sort keeps the drawn order of simultaneous events.
    timeline.sort_by_key(|(at, _)| *at);
    timeline
}

fn moment(dice: &Dice, window: Duration) -> Duration {
    Duration::from_millis(dice.below(window.as_millis() as u64))
}

fn requests(
    dice: &Dice,
    target: Target,
    topics: &[TopicPlan],
    processes: usize,
    window: Duration,
) -> Vec<(Duration, Happening)> {
    let mut timeline = vec![];
    let mut generation = 0;
    let burst = dice.chance(0.3).then(|| moment(dice, window));
    for number in 0..dice.size(3, 40) {
        let id = MessageId::from(format!("m{number}"));
        let topic = dice.pick(topics);
        let to = match dice.below(10) {
            0 => dice.pick(&topic.subscriptions).subscription().address(),
            1 if target != Target::Memory && dice.chance(0.2) => Address::topic("nowhere"),
            _ => Address::topic(topic.name.clone()),
        };
        let when = when(dice);
        let once = match dice.below(4) {
            0 => Some(OnConflict::Fail),
            1 => Some(OnConflict::Replace),
            _ => None,
        };
        let at = burst.filter(|_| dice.chance(0.5)).unwrap_or_else(|| moment(dice, window));
        let key = dice.chance(0.5).then(|| dice.below(3) as u8);
        let sending = |generation, to: &Address, when, once| {
            let subject = Subject { id: id.clone(), generation };
            Sending { subject, to: to.clone(), when, once, key }
        };
        let retries = || if dice.chance(0.5) { 3 } else { 0 };
        let send = |generation, to: &Address, when, once| {
            Planned::Send(vec![sending(generation, to, when, once)], retries())
        };
        let mut ask = |at: Duration, what: Planned| {
            timeline.push((at, Happening::Request(dice.below(processes as u64) as usize, what)));
        };
        generation += 1;
        let mut batch = vec![sending(generation, &to, when, once)];
        while dice.chance(0.2) {
            // Other messages in the same batch, each with its own destination.
            generation += 1;
            let id = MessageId::from(format!("m{number}-{}", batch.len()));
            let to = Address::topic(dice.pick(topics).name.clone());
            let other = sending(generation, &to, self::when(dice), None);
            batch.push(Sending { subject: Subject { id, generation }, ..other });
        }
        let first = batch[0].subject.generation;
        ask(at, Planned::Send(batch, retries()));
        let later = |most: u64| at + dice.millis(1, most);
        if once == Some(OnConflict::Fail) && dice.chance(0.5) {
            ask(later(60_000), send(first, &to, when, once));
        }
        if once == Some(OnConflict::Fail) && dice.chance(0.2) {
            // Other content under the same id, which must be refused.
            generation += 1;
            ask(later(60_000), send(generation, &to, when, once));
        }
        if once == Some(OnConflict::Replace) && dice.chance(0.7) {
            generation += 1;
            ask(later(60_000), send(generation, &to, self::when(dice), once));
        }
        if once.is_some() && dice.chance(0.1) {
            // The same id in another topic is a separate message.
            generation += 1;
            ask(at, send(generation, &Address::topic(dice.pick(topics).name.clone()), when, once));
        }
        while once.is_none() && dice.chance(0.2) {
            // Without a user-chosen id, each send of it is a separate message, even to the same
            // address.
            generation += 1;
            let content = if dice.chance(0.5) { first } else { generation };
            let topic = dice.pick(topics);
            let again = match dice.below(3) {
                0 => to.clone(),
                1 => dice.pick(&topic.subscriptions).subscription().address(),
                _ => Address::topic(topic.name.clone()),
            };
            let due = if dice.chance(0.5) { when } else { self::when(dice) };
            ask(later(60_000), send(content, &again, due, None));
        }
        if dice.chance(0.15) {
            ask(later(600_000), Planned::Cancel(id.clone()));
        }
        if dice.chance(0.15) {
            ask(later(600_000), Planned::Reschedule(id.clone(), self::when(dice)));
        }
    }
    for _ in 0..dice.below(4) {
        let (at, topic) = (moment(dice, window), dice.pick(topics).name.clone());
        timeline
            .push((at, Happening::Request(dice.below(processes as u64) as usize, Planned::Replay(topic))));
    }
    timeline
}

fn when(dice: &Dice) -> When {
    match dice.below(12) {
        0..=4 => When::Now,
        5 => When::After(Duration::from_micros(dice.between(1, 5_000))),
        6 | 7 => When::After(dice.millis(1, 3_600_000)),
        8 => When::After(dice.millis(3_600_000, 5 * 24 * 3_600_000)),
        9 => When::At(-(dice.millis(1, 3_600_000).as_millis() as i64)),
        _ => When::At(dice.millis(1, 3_600_000).as_millis() as i64),
    }
}

fn troubles(
    dice: &Dice,
    target: Target,
    processes: usize,
    window: Duration,
    faults: bool,
    timeline: &mut Vec<(Duration, Happening)>,
) {
    let process = || dice.below(processes as u64) as usize;
    let times = |most: u64| if dice.chance(0.5) { 0 } else { dice.below(most + 1) };
    // An orderly stop or a wrong clock does not justify a duplicate, so they occur in worlds
    // without faults too.
    for _ in 0..times(3) {
        timeline.push((moment(dice, window), Happening::Restart(process())));
    }
    for _ in 0..times(3) {
        let by = dice.millis(1, 3_600_000).as_millis() as i64;
        let by = if dice.chance(0.5) { by } else { -by };
        timeline.push((moment(dice, window), Happening::Step(by)));
    }
    for _ in 0..times(2) {
        timeline.push((moment(dice, window), Happening::PausePumps(process(), dice.millis(100, 120_000))));
    }
    let mut at = Duration::from_secs(60);
    while at < window + Duration::from_secs(3600) {
        timeline.push((at, Happening::RestartPumps));
        at += window / 10 + Duration::from_secs(60);
    }
    if !faults {
        return;
    }
    for _ in 0..times(3) {
        timeline.push((moment(dice, window), Happening::Crash(process())));
    }
    for _ in 0..times(3) {
        timeline.push((moment(dice, window), Happening::Pause(process(), dice.millis(100, 120_000))));
    }
    for _ in 0..times(2) {
        let service = match target {
            Target::Log(_) | Target::Stored if dice.chance(0.5) => Service::Store,
            _ => Service::Target,
        };
        timeline.push((moment(dice, window), Happening::Outage(service, dice.millis(100, 300_000))));
    }
    if matches!(target, Target::Log(_)) {
        for _ in 0..times(2) {
            timeline.push((moment(dice, window), Happening::DropSession(process())));
        }
    }
}
