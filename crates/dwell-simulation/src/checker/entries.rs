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
        // Only what waits, and what a user sends under a name of their own, can replace anything.
        if due > wall || placed.once == Some(OnConflict::Replace) {
            for other in of_id.iter_mut().filter(|other| {
                !other.gone
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
        of_id.push(Waiting {
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
        Self::named(&mut self.placed, service, schedule).any(|entry| entry.surely_waits(walls, now))
    }

    fn named<'a>(
        placed: &'a mut BTreeMap<MessageId, Vec<Waiting>>,
        service: Service,
        schedule: &'a ScheduleId,
    ) -> impl Iterator<Item = &'a mut Waiting> {
        let id = MessageId::from(schedule.0.split('@').next().unwrap_or_default());
        let of_id = placed.get_mut(&id).into_iter().flatten();
        of_id.filter(move |entry| entry.service == service && entry.schedule == *schedule && !entry.gone)
    }
}
