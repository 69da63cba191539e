//! What was placed, and when each of it is due.

use super::walls::Walls;
use crate::trace::{Placed, Service, Subject};
use dwell_core::{Address, MessageId, OnConflict, ScheduleId, Text, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// One thing that was placed.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) service: Service,
    /// The topic that it goes to in the end: an id means something else in another.
    topic: Text,
    schedule: ScheduleId,
    pub(super) subject: Subject,
    pub(super) to: Address,
    pub(super) handled: u32,
    content: u128,
    /// A user sent it: its id is known where it was accepted, and not where it is forwarded to.
    asked: bool,
    /// It was in somebody's hands before.
    moved: bool,
    /// Something of other content waited under its name when it came, so that it waits beside it; `None` if that cannot
    /// be told, because the other was due, or because they are alike.
    beside: Option<bool>,
    placed: Duration,
    pub(super) due: Timestamp,
    /// It will never fire: cancelled or replaced while it waited.
    pub(super) gone: bool,
}

impl Waiting {
    /// Whether it may have been due at any moment until now.
    fn was_due(&self, walls: &Walls, now: Duration) -> bool {
        walls.highest(self.placed, now) >= self.due
    }

    fn surely_waits(&self, walls: &Walls, now: Duration) -> bool {
        !self.gone && !self.was_due(walls, now)
    }
}

/// Whether what was placed under a known name took the place of another.
pub(super) enum Replaced {
    /// Nothing was there.
    Nothing,
    /// It surely waited, and will never fire.
    Surely(Waiting),
    /// It was due, and had fired or not.
    Perhaps(Waiting),
}

/// Whether both were in somebody's hands: one is no copy of the other then, whatever they say, and both go on.
fn is_twin(placed: &Placed, other: &Waiting) -> bool {
    let name = (placed.service, placed.to.topic_name(), &placed.schedule);
    placed.moved && other.moved && (other.service, &other.topic, &other.schedule) == name
}

/// The message behind a name that something waits under.
pub(super) fn message_of(schedule: &ScheduleId) -> MessageId {
    MessageId::from(schedule.0.split(['@', '&']).next().unwrap_or_default())
}

/// Everything that was placed, by message id.
#[derive(Default)]
pub(super) struct Entries {
    placed: BTreeMap<MessageId, Vec<Waiting>>,
}

impl Entries {
    /// Adds what was placed; `due` is its due time on the holder's clock.
    pub(super) fn place(
        &mut self,
        placed: &Placed,
        due: Timestamp,
        wall: Timestamp,
        walls: &Walls,
        now: Duration,
    ) -> Vec<Replaced> {
        let of_id = self.placed.entry(placed.subject.id.clone()).or_default();
        let mut replaced = vec![];
        // Only what waits, and what a user sends under a name of their own, can replace anything; and nobody but a user
        // can replace one content by another.
        if due > wall || placed.once == Some(OnConflict::Replace) {
            for other in of_id.iter_mut().filter(|other| {
                !other.gone
                    && (placed.request.is_some() || other.content == placed.content)
                    && !is_twin(placed, other)
                    && (other.service, &other.topic, &other.schedule)
                        == (placed.service, placed.to.topic_name(), &placed.schedule)
            }) {
                if other.surely_waits(walls, now) {
                    other.gone = true;
                    replaced.push(Replaced::Surely(other.clone()));
                } else if other.due > Timestamp(i64::MIN) {
                    replaced.push(Replaced::Perhaps(other.clone()));
                }
            }
        }
        let others = of_id.iter().filter(|other| {
            !other.gone
                && other.beside != Some(true)
                && other.content != placed.content
                && (other.service, &other.topic, &other.schedule)
                    == (placed.service, placed.to.topic_name(), &placed.schedule)
        });
        let surely = |other: &Waiting| other.beside == Some(false) && other.surely_waits(walls, now);
        let others: Vec<bool> = others.map(surely).collect();
        let has_twin = of_id.iter().any(|other| !other.gone && is_twin(placed, other));
        let beside = match placed.request {
            None if others.contains(&true) => Some(true),
            None if !others.is_empty() || has_twin => None,
            _ => Some(false),
        };
        of_id.push(Waiting {
            content: placed.content,
            asked: placed.request.is_some(),
            moved: placed.moved,
            beside,
            service: placed.service,
            topic: placed.to.topic_name().clone(),
            schedule: placed.schedule.clone(),
            subject: placed.subject.clone(),
            to: placed.to.clone(),
            handled: placed.attempts.handled,
            placed: now,
            due,
            gone: false,
        });
        if replaced.is_empty() {
            replaced.push(Replaced::Nothing);
        }
        replaced
    }

    /// All that was placed of a message with this count, at this service, for whom `covers` says so.
    fn of<'a>(
        &'a self,
        service: Service,
        subject: &'a Subject,
        handled: u32,
        covers: impl Fn(&Address) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Waiting> + 'a {
        let of_id = self.placed.get(&subject.id).into_iter().flatten();
        of_id.filter(move |entry| {
            entry.service == service
                && entry.subject == *subject
                && entry.handled == handled
                && covers(&entry.to)
        })
    }

    /// Whether anything may be due after this time.
    pub(super) fn any_due_after(&self, wall: Timestamp) -> bool {
        self.placed.values().flatten().any(|entry| !entry.gone && entry.due > wall)
    }

    /// Whether a message was ever placed there.
    pub(super) fn is_known(&self, subject: &Subject, to: &Address) -> bool {
        let mut of_id = self.placed.get(&subject.id).into_iter().flatten();
        of_id.any(|entry| entry.subject == *subject && entry.to == *to)
    }

    /// Whether any of what was placed may have come due by now; `None` if nothing was placed at all.
    pub(super) fn was_due(
        &self,
        service: Service,
        subject: &Subject,
        handled: u32,
        covers: impl Fn(&Address) -> bool,
        walls: &Walls,
        now: Duration,
    ) -> Option<Result<(), Timestamp>> {
        let mut earliest: Option<Timestamp> = None;
        for entry in self.of(service, subject, handled, covers) {
            if entry.was_due(walls, now) {
                return Some(Ok(()));
            }
            earliest = Some(earliest.map_or(entry.due, |due| due.min(entry.due)));
        }
        earliest.map(Err)
    }

    /// What of a message has surely waited since then, and still does.
    pub(super) fn left_of(
        &self,
        id: &MessageId,
        since: Duration,
        walls: &Walls,
        now: Duration,
    ) -> Option<&ScheduleId> {
        let mut of_id = self.placed.get(id).into_iter().flatten();
        let left = of_id.find(|entry| entry.placed < since && entry.surely_waits(walls, now));
        left.map(|entry| &entry.schedule)
    }

    /// Whether another content was accepted under the id of this one, and is remembered.
    pub(super) fn conflict(&self, placed: &Placed) -> Option<&Subject> {
        let of_id = self.placed.get(&placed.subject.id).into_iter().flatten();
        let mut of_topic = of_id.filter(|entry| {
            !entry.gone && entry.service == placed.service && entry.topic == *placed.to.topic_name()
        });
        of_topic.find(|entry| entry.asked && entry.handled == 0).map(|entry| &entry.subject)
    }

    /// What waits under this name was cancelled: the newest that may have waited.
    pub(super) fn cancel(
        &mut self,
        service: Service,
        schedule: &ScheduleId,
        walls: &Walls,
        now: Duration,
    ) -> Vec<Waiting> {
        let mut cancelled: BTreeMap<Text, &mut Waiting> = BTreeMap::new();
        for entry in Self::named(&mut self.placed, service, schedule) {
            let sure = entry.surely_waits(walls, now);
            let better =
                cancelled.get(&entry.topic).is_none_or(|other| sure || !other.surely_waits(walls, now));
            if better {
                cancelled.insert(entry.topic.clone(), entry);
            }
        }
        // Where several topics hold the id, those that surely wait are among what was cancelled; if none does, one of
        // them was.
        let any_sure = cancelled.values().any(|entry| entry.surely_waits(walls, now));
        let mut result = vec![];
        for entry in cancelled.into_values() {
            if !any_sure || entry.surely_waits(walls, now) {
                entry.gone = true;
                result.push(entry.clone());
            }
        }
        result
    }

    /// What waits under this name is due then.
    pub(super) fn reschedule(
        &mut self,
        service: Service,
        schedule: &ScheduleId,
        due: Timestamp,
        walls: &Walls,
        now: Duration,
    ) {
        let mut newest = None;
        for entry in Self::named(&mut self.placed, service, schedule) {
            if entry.surely_waits(walls, now) {
                entry.due = due;
                newest = None;
            } else {
                newest = Some(entry);
            }
        }
        if let Some(entry) = newest {
            entry.due = due.min(entry.due);
        }
    }

    /// Whether something surely waits under this name.
    pub(super) fn surely_waits(
        &mut self,
        service: Service,
        schedule: &ScheduleId,
        walls: &Walls,
        now: Duration,
    ) -> bool {
        let mut named = Self::named(&mut self.placed, service, schedule);
        named.any(|entry| entry.beside.is_some() && entry.surely_waits(walls, now))
    }

    fn named<'a>(
        placed: &'a mut BTreeMap<MessageId, Vec<Waiting>>,
        service: Service,
        schedule: &'a ScheduleId,
    ) -> impl Iterator<Item = &'a mut Waiting> {
        // What waits beside another is told apart by its content, or by a number where they are alike.
        let (name, content) = match schedule.0.split_once('&') {
            Some((name, content)) if content.len() == 32 => (name, u128::from_str_radix(content, 16).ok()),
            Some((name, _)) => (name, None),
            None => (&*schedule.0, None),
        };
        let of_id = placed.get_mut(&message_of(schedule)).into_iter().flatten();
        of_id.filter(move |entry| {
            let is_it = content.map_or(entry.beside != Some(true), |content| entry.content == content);
            is_it && entry.service == service && *entry.schedule.0 == *name && !entry.gone
        })
    }
}
