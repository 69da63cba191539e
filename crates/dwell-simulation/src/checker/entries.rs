//! What was placed, and when each of it is due.

use super::walls::Walls;
use crate::trace::{Placed, Service, Subject};
use dwell_core::{Address, MessageId, OnConflict, ScheduleId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// One thing that was placed.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) service: Service,
    schedule: ScheduleId,
    pub(super) subject: Subject,
    pub(super) to: Address,
    pub(super) handled: u32,
    content: u128,
    /// A user sent it under an id of their own: its id is known where it was accepted, and not where it is forwarded to.
    chosen: bool,
    /// A copy by the engine, which a repeated settlement replaces.
    copied: bool,
    /// Another entry had its name when it was placed, so that it has a free name; `None` if that cannot be told, because the
    /// other entry was due.
    beside: Option<bool>,
    placed: Duration,
    pub(super) due: Timestamp,
    /// It will never fire: cancelled or replaced while it waited.
    pub(super) gone: bool,
    /// It was cancelled if it had not fired, which cannot be told: its id is free or known.
    perhaps_gone: bool,
}

impl Waiting {
    /// Whether it may have been due at any moment until now.
    fn was_due(&self, walls: &Walls, now: Duration) -> bool {
        walls.highest(self.placed, now) >= self.due
    }

    fn surely_waits(&self, walls: &Walls, now: Duration) -> bool {
        !self.gone && !self.was_due(walls, now)
    }

    /// Whether a cancel or a reschedule may change it while it waits.
    fn can_change(&self) -> bool {
        !ScheduleId::is_too_late(&self.schedule.0)
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

/// Whether this replaces what has its name. A user's send does so if it asks for it, and a copy replaces an earlier copy of
/// the same message. Nothing else replaces anything.
fn replaces(placed: &Placed, other: &Waiting) -> bool {
    match (placed.request, placed.once) {
        (_, Some(OnConflict::Replace)) => other.beside != Some(true),
        (None, None) => other.copied && other.content == placed.content,
        (None, Some(OnConflict::Fail)) | (Some(_), _) => false,
    }
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
        let mut taken = vec![];
        let has_its_name = |other: &&mut Waiting| {
            !other.gone && (other.service, &other.schedule) == (placed.service, &placed.schedule)
        };
        for other in of_id.iter_mut().filter(has_its_name) {
            let is_sure = other.surely_waits(walls, now);
            // Only a pending copy, and a user's send with `Replace`, can replace an entry.
            let can_replace = due > wall || placed.once == Some(OnConflict::Replace);
            if !can_replace || !replaces(placed, other) {
                if other.beside != Some(true) && other.due > Timestamp(i64::MIN) {
                    taken.push(is_sure && other.beside == Some(false));
                }
            } else if is_sure && (other.copied || other.beside == Some(false)) {
                other.gone = true;
                replaced.push(Replaced::Surely(other.clone()));
            } else if other.due > Timestamp(i64::MIN) {
                replaced.push(Replaced::Perhaps(other.clone()));
            }
        }
        let beside = match placed.once {
            None if taken.contains(&true) => Some(true),
            None if !taken.is_empty() => None,
            _ => Some(false),
        };
        of_id.push(Waiting {
            content: placed.content,
            chosen: placed.once.is_some(),
            copied: placed.request.is_none() && !placed.moved,
            beside,
            service: placed.service,
            schedule: placed.schedule.clone(),
            subject: placed.subject.clone(),
            to: placed.to.clone(),
            handled: placed.attempts.handled,
            placed: now,
            due,
            gone: false,
            perhaps_gone: false,
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
        let left =
            of_id.find(|entry| entry.placed < since && entry.can_change() && entry.surely_waits(walls, now));
        left.map(|entry| &entry.schedule)
    }

    /// Whether another content was accepted at the same address under the id of this one, and is remembered.
    pub(super) fn conflict(&self, placed: &Placed) -> Option<&Subject> {
        let mut of_id = self.placed.get(&placed.subject.id).into_iter().flatten();
        let at_address = of_id.find(|entry| {
            !entry.gone
                && !entry.perhaps_gone
                && entry.chosen
                && entry.service == placed.service
                && entry.to == placed.to
        });
        at_address.map(|entry| &entry.subject)
    }

    /// The pending entries of this message were cancelled: those that surely waited, and those that may have.
    pub(super) fn cancel(
        &mut self,
        service: Service,
        message: &MessageId,
        wall: Timestamp,
        walls: &Walls,
        now: Duration,
    ) -> (Vec<Waiting>, Vec<Waiting>) {
        let (mut sure, mut unsure) = (vec![], vec![]);
        for entry in Self::of_message(&mut self.placed, service, message) {
            if entry.surely_waits(walls, now) {
                entry.gone = true;
                sure.push(entry.clone());
            } else if entry.due > wall {
                // It was due before the clock was set back: it has fired or not.
                entry.perhaps_gone = true;
                unsure.push(entry.clone());
            }
        }
        if sure.is_empty() && unsure.is_empty() {
            // One of them waited, though it was not to be.
            unsure.extend(Self::of_message(&mut self.placed, service, message).last().cloned());
        }
        (sure, unsure)
    }

    /// The pending entries of this message are due then.
    pub(super) fn reschedule(
        &mut self,
        service: Service,
        message: &MessageId,
        due: Timestamp,
        walls: &Walls,
        now: Duration,
    ) {
        for entry in Self::of_message(&mut self.placed, service, message) {
            let is_sure = entry.surely_waits(walls, now);
            entry.due = if is_sure { due } else { due.min(entry.due) };
        }
    }

    /// Whether an entry of this message surely waits that can be changed.
    pub(super) fn surely_waits(
        &mut self,
        service: Service,
        message: &MessageId,
        walls: &Walls,
        now: Duration,
    ) -> bool {
        Self::of_message(&mut self.placed, service, message).any(|entry| entry.surely_waits(walls, now))
    }

    fn of_message<'a>(
        placed: &'a mut BTreeMap<MessageId, Vec<Waiting>>,
        service: Service,
        message: &MessageId,
    ) -> impl Iterator<Item = &'a mut Waiting> + use<'a> {
        let of_id = placed.get_mut(message).into_iter().flatten();
        of_id.filter(move |entry| entry.service == service && !entry.gone && entry.can_change())
    }
}
