//! Placed messages with their due times.

use super::walls::Walls;
use crate::trace::{Placed, Service, Subject};
use dwell_core::{Address, MessageId, OnConflict, ScheduleId, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// One placed message.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) service: Service,
    schedule: ScheduleId,
    pub(super) subject: Subject,
    pub(super) to: Address,
    pub(super) handled: u32,
    content: u128,
    /// Set if a user sent it under a chosen id, which is then known to the service that accepted
    /// it, but not where it is forwarded.
    chosen: bool,
    /// Set for a copy by the engine, which a repeated settlement replaces.
    copied: bool,
    /// Set if another entry had its name when it was placed, so that it got a free name; `None` if
    /// that is uncertain, because the other entry was due.
    beside: Option<bool>,
    placed: Duration,
    pub(super) due: Timestamp,
    /// Set if it will never fire, because it was cancelled or replaced while pending.
    pub(super) gone: bool,
    /// Set if it was cancelled but may have fired before: its id may be free or known.
    perhaps_gone: bool,
}

impl Waiting {
    /// Returns whether it may have been due at some time until now.
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

/// Effect of a placement on an entry with the same name.
pub(super) enum Replaced {
    /// There was no such entry.
    Nothing,
    /// The entry was certainly pending, and will never fire.
    Surely(Waiting),
    /// The entry was due, and may have fired.
    Perhaps(Waiting),
}

/// Returns whether a placement replaces the entry with its name. A user's send replaces it if it
/// requests that, and a copy replaces an earlier copy of the same message. No other placement
/// replaces an entry.
fn replaces(placed: &Placed, other: &Waiting) -> bool {
    match (placed.request, placed.once) {
        (_, Some(OnConflict::Replace)) => other.beside != Some(true),
        (None, None) => other.copied && other.content == placed.content,
        (None, Some(OnConflict::Fail)) | (Some(_), _) => false,
    }
}

/// All placements, by message id.
#[derive(Default)]
pub(super) struct Entries {
    placed: BTreeMap<MessageId, Vec<Waiting>>,
}

impl Entries {
    /// Adds a placement; `due` is its due time on the holder's clock.
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

    /// Returns the placements of a message with this count at this service, for addresses accepted
    /// by `covers`.
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

    /// Returns whether any message may be due after this time.
    pub(super) fn any_due_after(&self, wall: Timestamp) -> bool {
        self.placed.values().flatten().any(|entry| !entry.gone && entry.due > wall)
    }

    /// Returns whether a message was ever placed at this destination.
    pub(super) fn is_known(&self, subject: &Subject, to: &Address) -> bool {
        let mut of_id = self.placed.get(&subject.id).into_iter().flatten();
        of_id.any(|entry| entry.subject == *subject && entry.to == *to)
    }

    /// Whether a message was ever stored there under an id of its user's own.
    pub(super) fn is_chosen(&self, subject: &Subject, to: &Address) -> bool {
        let mut of_id = self.placed.get(&subject.id).into_iter().flatten();
        of_id.any(|entry| {
            entry.chosen && entry.service == Service::Store && entry.subject == *subject && entry.to == *to
        })
    }

    /// Whether any of what was placed may have come due by now; `None` if nothing was placed at
    /// all.
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

    /// Returns an entry of a message that has certainly been pending since this time, and still is.
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

    /// Returns another content that was accepted at the same address under the same id and is
    /// remembered.
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

    /// Records a cancel of the pending entries of this message. Returns those certainly pending,
    /// and those possibly pending.
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
                // It was due before the clock was set back, so it may have fired.
                entry.perhaps_gone = true;
                unsure.push(entry.clone());
            }
        }
        if sure.is_empty() && unsure.is_empty() {
            // One of them was pending, although none should have been.
            unsure.extend(Self::of_message(&mut self.placed, service, message).last().cloned());
        }
        (sure, unsure)
    }

    /// Records a reschedule of the pending entries of this message.
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
