//! Checks when a message is placed.

use super::{
    Checker, Promise,
    entries::{Replaced, Waiting},
    track::End,
};
use crate::trace::{Placed, Received, Request, Service, Stamps, Subject};
use dwell_core::{Address, Due, OnConflict, Timestamp};

impl Checker {
    pub(super) fn placed(&mut self, placed: &Placed) {
        if placed.duplicate {
            if !self.entries.is_known(&placed.subject, &placed.to) {
                let text = format!(
                    "a message to {} was treated as a duplicate, but was never sent before",
                    placed.to
                );
                self.broken(Promise::NeverLost, &placed.subject.id, text);
            }
            return;
        }
        if let Some(stamps) = &placed.dead {
            return self.died(placed, stamps);
        }
        self.check_request(placed);
        self.check_begun(placed);
        if placed.attempts.handled > 0 && placed.to.subscription_name().is_none() {
            let text = format!("it has run before, but was published to all subscriptions of {}", placed.to);
            return self.broken(Promise::BackToTheOneWhoDeferred, &placed.subject.id, text);
        }
        // A forwarder returns messages that it could not send: the same message stays pending.
        let is_hold = placed.request.is_none() && placed.moved && placed.service == Service::Store;
        if placed.request.is_none() && !is_hold {
            self.check_copy(placed);
        }
        let due = self.due_at_holder(placed);
        for replaced in self.entries.place(placed, due, self.wall, &self.walls, self.now) {
            self.replaced(placed, replaced);
        }
        for of in self.plan.clone().reached(&placed.to) {
            self.count_placed(placed, &of, is_hold);
        }
    }

    /// Returns the due time on the clock of the holder. A log holds no message back: what it
    /// accepts is due.
    fn due_at_holder(&mut self, placed: &Placed) -> Timestamp {
        if placed.service == Service::Store || !self.has_sessions() {
            return placed.due.resolve(self.wall.into());
        }
        if let (Due::At(time), Some(who)) = (placed.due, placed.who) {
            let skew = self.plan.processes[who.process].skew;
            if Timestamp(self.wall.0 + skew) < time {
                let text = format!("it was forwarded by {who} before it was due on the clock of {who}");
                self.broken(Promise::NeverEarly, &placed.subject.id, text);
            }
        }
        Timestamp(i64::MIN)
    }

    fn replaced(&mut self, by: &Placed, replaced: Replaced) {
        let (old, surely) = match replaced {
            Replaced::Nothing => return,
            Replaced::Surely(old) => (old, true),
            Replaced::Perhaps(old) => (old, false),
        };
        if surely {
            self.gone(&old);
        }
        if old.subject == by.subject {
            if surely && by.request.is_none() && !by.moved {
                self.check_repeated(by);
            }
            // The same message again: it goes on in the new one.
            for of in self.plan.clone().reached(&old.to) {
                self.track(&old.subject, &of).unsure = true;
            }
            return;
        }
        for of in self.plan.clone().reached(&old.to) {
            self.track(&old.subject, &of).unsure |= !surely;
            self.end(&old.subject, &of, End::Replaced);
        }
    }

    /// A copy that takes the place of another of the same message: a settlement is repeated, which
    /// a fault explains. Else these were two messages of one id and content, and one of them is
    /// gone.
    fn check_repeated(&mut self, by: &Placed) {
        for of in self.plan.clone().reached(&by.to) {
            let track = self.track(&by.subject, &of);
            track.repeated += 1;
            let (repeated, faults) = (track.repeated, track.faults);
            if repeated > faults {
                let text = format!(
                    "{repeated} copies for {of} took the place of others that waited, and {faults} faults touched it"
                );
                self.broken(Promise::NeverLost, &by.subject.id, text);
            }
        }
    }

    /// Something that waited will never fire.
    pub(super) fn gone(&mut self, entry: &Waiting) {
        for of in self.plan.clone().reached(&entry.to) {
            let level = self.track(&entry.subject, &of).level(entry.handled);
            match entry.service {
                Service::Target => level.gone += 1,
                Service::Store => level.gone_from_store += 1,
            }
        }
    }

    fn count_placed(&mut self, placed: &Placed, of: &Address, is_hold: bool) {
        let (now, is_request) = (self.now, placed.request.is_some());
        let track = self.track(&placed.subject, of);
        if !is_hold {
            track.last_placed = Some(now);
            track.starts += u32::from(is_request);
        }
        let level = track.level(placed.attempts.handled);
        match placed.service {
            Service::Target => {
                level.placed += 1;
                level.copied += u32::from(!is_request);
            }
            Service::Store => level.stored += u32::from(is_request),
        }
        let extra = track.extra_copies();
        if extra > track.faults {
            let text = format!(
                "{extra} more copies were made for {of} than requested, but {} faults affected it",
                track.faults
            );
            self.broken(Promise::DuplicatesExplained, &placed.subject.id, text);
        }
        self.note_end(&placed.subject, of);
    }

    /// Checks that a user's send arrives as requested.
    fn check_request(&mut self, placed: &Placed) {
        let Some(number) = placed.request else { return };
        let asked =
            self.requests.range((number, 0)..(number + 1, 0)).find_map(|(_, (_, request))| match request {
                Request::Send { subject, to, due, once }
                    if *subject == placed.subject && *to == placed.to =>
                {
                    Some((due, once))
                }
                _ => None,
            });
        let Some((due, once)) = asked else { return };
        if *once == Some(OnConflict::Fail)
            && let Some(first) = self.entries.conflict(placed)
        {
            let text =
                format!("{} was accepted under the id of {first} instead of a conflict", placed.subject);
            return self.broken(Promise::DuplicatesExplained, &placed.subject.id, text);
        }
        if *due != placed.due {
            let text = format!("it was sent with due {due:?}, but placed with {:?}", placed.due);
            self.broken(Promise::NeverEarly, &placed.subject.id, text);
        }
    }

    /// Checks a copy that no user requested: a run requested it, or it comes from the store.
    fn check_copy(&mut self, placed: &Placed) {
        let Placed { subject, to, attempts, .. } = placed;
        let stored = match placed.service {
            Service::Store => None,
            Service::Target => self.entries.was_due(
                Service::Store,
                subject,
                attempts.handled,
                |other| other == to,
                &self.walls,
                self.now,
            ),
        };
        match stored {
            Some(Ok(())) => {}
            _ if attempts.handled > 0 => self.check_again(placed),
            _ if self.was_released(placed) => {}
            Some(Err(due)) => {
                let text = format!("it was forwarded to {to} before it was due at {} in the store", due.0);
                self.broken(Promise::NeverEarly, &subject.id, text);
            }
            None => {
                let text = format!("it was placed at {to} without any runs, but was never sent there");
                self.broken(Promise::BudgetsHold, &subject.id, text);
            }
        }
        self.check_second_copy(placed);
    }

    /// Returns whether it returns unchanged because a run released it, on a broker without release.
    fn was_released(&self, placed: &Placed) -> bool {
        let track = self.tracks.get(&(placed.subject.clone(), placed.to.clone()));
        let level = track.and_then(|track| track.levels.get(&placed.attempts.handled));
        placed.due == Due::NOW && level.is_some_and(|level| level.released > 0)
    }

    /// Checks that no second copy is made once the first one is confirmed.
    fn check_second_copy(&mut self, placed: &Placed) {
        let Placed { subject, to, attempts, .. } = placed;
        let Some(who) = placed.who.filter(|_| !placed.moved) else { return };
        let copies = *self.copies(who, subject, to, attempts.handled);
        if copies.confirmed >= copies.allowed {
            let text = format!(
                "{who} placed it at {to} again, although {} copies were confirmed and {} requested",
                copies.confirmed, copies.allowed
            );
            self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
    }

    /// Checks a copy with counts above zero: a run of its subscription must have requested exactly
    /// this.
    fn check_again(&mut self, placed: &Placed) {
        let Placed { subject, to, attempts, due, .. } = placed;
        let asked: Vec<_> = match self.tracks.get(&(subject.clone(), to.clone())) {
            Some(track) => track.again.iter().filter(|again| again.attempts == *attempts).cloned().collect(),
            None => vec![],
        };
        if asked.is_empty() {
            let promise = self.astray(subject, to, *attempts);
            let text = format!("it was placed at {to} with {attempts:?}, but no run there requested that");
            return self.broken(promise, &subject.id, text);
        }
        if asked.iter().any(|again| again.due.fits(*due)) || self.was_released(placed) {
            return;
        }
        let early = asked.iter().all(|again| again.due.is_undercut_by(*due));
        let promise = if early { Promise::NeverEarly } else { Promise::OneMeaningOfDelay };
        let text = format!("it was placed at {to} with due {due:?}, but {:?} was requested", asked[0].due);
        self.broken(promise, &subject.id, text);
    }

    /// Checks a message that was moved to a dead-letter channel.
    fn died(&mut self, placed: &Placed, stamps: &Stamps) {
        let Placed { subject, to, .. } = placed;
        let Some((from, reason)) = &stamps.from else {
            let text = format!("it is in {} without stamps of its origin", placed.topic);
            return self.broken(Promise::Visible, &subject.id, text);
        };
        if !stamps.missing.is_empty() {
            let text = format!("it is in {} without {}", placed.topic, stamps.missing.join(", "));
            return self.broken(Promise::Visible, &subject.id, text);
        }
        if reason == "unroutable" {
            for of in self.plan.clone().reached(to) {
                if self.plan.settings(&of).is_some() {
                    let text = format!("it was parked as unroutable, but {of} exists");
                    self.broken(Promise::NeverLost, &subject.id, text);
                }
                self.end(subject, &of, End::Parked);
            }
            return;
        }
        self.check_second_copy(placed);
        self.check_death(placed, from, reason);
        self.end(subject, from, End::Dead);
    }

    fn check_death(&mut self, placed: &Placed, from: &Address, reason: &str) {
        let subject: &Subject = &placed.subject;
        let quarantine = self.plan.settings(from).and_then(|settings| settings.quarantine_after);
        let track = self.track(subject, from);
        if reason == "poison" {
            let limit = quarantine.unwrap_or(10);
            if limit == 0 || track.faults < limit {
                let text =
                    format!("{from} gave it up as poison after {} faults instead of {limit}", track.faults);
                self.broken(Promise::BudgetsHold, &subject.id, text);
            }
            return;
        }
        track.deaths += 1;
        let (deaths, killed, faults) = (track.deaths, track.killed.len() as u32, track.faults);
        let counts: Vec<_> =
            track.killed.iter().filter(|killed| killed.attempts == placed.attempts).cloned().collect();
        if counts.is_empty() {
            let text = format!("{from} gave it up with {:?}, but no run there led to that", placed.attempts);
            return self.broken(Promise::BudgetsHold, &subject.id, text);
        }
        if !counts.iter().any(|killed| killed.channel == placed.topic) {
            let text = format!("it is in {}, but belongs in {}", placed.topic, counts[0].channel);
            return self.broken(Promise::Visible, &subject.id, text);
        }
        if deaths > killed + faults {
            let text = format!(
                "it became a dead letter {deaths} times in {from}: {killed} runs gave it up, {faults} faults affected it"
            );
            self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
    }

    /// Checks that no service delivers a message before it is due.
    pub(super) fn received(&mut self, received: &Received) {
        let is_impaired = self.held.receive(received, self.has_sessions());
        if is_impaired {
            let touched =
                crate::trace::Touched { subject: received.subject.clone(), to: received.to.clone() };
            self.touch(&touched);
        }
        if received.service != Service::Store {
            return;
        }
        let (subject, to, handled) = (&received.subject, &received.to, received.attempts.handled);
        self.copies(received.who, subject, to, handled).allowed += 1;
        let due = self.entries.was_due(
            Service::Store,
            subject,
            handled,
            |other| other == to,
            &self.walls,
            self.now,
        );
        match due {
            Some(Ok(())) => {}
            Some(Err(due)) => {
                let text = format!("the store delivered it before it was due at {}", due.0);
                self.broken(Promise::NeverEarly, &subject.id, text);
            }
            None => {
                let text = format!(
                    "the store holds it for {to} with handled count {handled}, but it was never placed there"
                );
                self.broken(Promise::BudgetsHold, &subject.id, text);
            }
        }
    }
}
