//! Checks at the start of a handler, and the effects of its end.

use super::{
    Checker, Promise,
    track::{Again, End, Expected, Killed, RunInfo},
};
use crate::trace::{Ending, Run, Service, Subject};
use dwell_core::{Address, Attempts, Due, Text};
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};

impl Checker {
    pub(super) fn run(&mut self, run: &Run) {
        let Run { subject, subscription: of, attempts, who, .. } = run;
        self.tally.runs += 1;
        if let Some(altered) = run.altered {
            let text = format!("its {altered} differs from what was sent");
            return self.broken(Promise::NeverLost, &subject.id, text);
        }
        let info = RunInfo { attempts: *attempts, ending: None };
        self.runs.insert(run.run, (subject.clone(), of.clone(), info));
        for handled in [attempts.handled, attempts.handled + 1] {
            self.copies(*who, subject, of, handled).allowed += 1;
        }
        self.check_counts(subject, of, *attempts);
        self.check_due(subject, of, attempts.handled);
        let track = self.track(subject, of);
        let before = track.extra_runs();
        track.level(attempts.handled).runs += 1;
        let extra = track.extra_runs();
        let faults = track.faults;
        let cancelled = track.levels[&attempts.handled].gone;
        self.tally.duplicates += u64::from(extra - before);
        if extra > faults {
            let gone = if cancelled > 0 { ", and it was cancelled or replaced" } else { "" };
            let text = format!(
                "{of} runs it more often at handled count {} than it was placed there: {extra} extra runs in total, \
                 but {faults} faults affected it{gone}",
                attempts.handled
            );
            self.broken(Promise::DuplicatesExplained, &subject.id, text);
        }
    }

    /// Checks that the counts match the earlier runs, and that their limits hold.
    fn check_counts(&mut self, subject: &Subject, of: &Address, attempts: Attempts) {
        let Some(settings) = self.plan.settings(of).cloned() else { return };
        if settings.max_runs.is_reached(attempts.handled) {
            let text = format!(
                "{of} runs it after {} runs, but the limit is {:?}",
                attempts.handled, settings.max_runs
            );
            return self.broken(Promise::BudgetsHold, &subject.id, text);
        }
        if attempts.failed > settings.retry.max_retries {
            let text = format!(
                "{of} runs it after {} failures, but the limit is {} retries",
                attempts.failed, settings.retry.max_retries
            );
            return self.broken(Promise::BudgetsHold, &subject.id, text);
        }
        let key = (subject.clone(), of.clone());
        let track = self.tracks.get(&key);
        if attempts == Attempts::default() {
            let placed = track.and_then(|track| track.levels.get(&0));
            if placed.is_none_or(|level| level.placed == 0) {
                let text = format!("{of} runs it, but it was never sent there, or its counts were lost");
                self.broken(Promise::BudgetsHold, &subject.id, text);
            }
            return;
        }
        if track.is_some_and(|track| track.asked_for(attempts)) {
            return;
        }
        let promise = self.astray(subject, of, attempts);
        let text = format!("{of} runs it with {attempts:?}, but no run there requested that");
        self.broken(promise, &subject.id, text);
    }

    /// Returns the guarantee that is broken if a message arrives with counts that no run in the
    /// subscription led to: either it was deferred in another subscription, or a count is wrong.
    pub(super) fn astray(&self, subject: &Subject, of: &Address, attempts: Attempts) -> Promise {
        let mut others = self.tracks.iter().filter(|((other, at), _)| other == subject && at != of);
        let is_of_another = others.any(|(_, track)| track.asked_for(attempts));
        let own = self.tracks.get(&(subject.clone(), of.clone()));
        let before = attempts.handled.checked_sub(1);
        let level = before.and_then(|before| own.and_then(|track| track.levels.get(&before)));
        // A release by a run of its own is more likely than a request of another subscription.
        if is_of_another && level.is_none_or(|level| level.released == 0) {
            Promise::BackToTheOneWhoDeferred
        } else {
            Promise::BudgetsHold
        }
    }

    fn check_due(&mut self, subject: &Subject, of: &Address, handled: u32) {
        let covers = |to: &Address| to == of || *to == Address::Topic(of.topic_name().clone());
        let due = self.entries.was_due(Service::Target, subject, handled, covers, &self.walls, self.now);
        if let Some(Err(due)) = due {
            let text =
                format!("{of} runs it at {} on the broker's clock, but it is due at {}", self.wall.0, due.0);
            self.broken(Promise::NeverEarly, &subject.id, text);
        }
    }

    pub(super) fn ended(&mut self, run: usize, ending: Ending) {
        let Some((subject, of, info)) = self.runs.get_mut(&run) else { return };
        info.ending = Some(ending);
        let (subject, of, attempts) = (subject.clone(), of.clone(), info.attempts);
        let Some(settings) = self.plan.settings(&of).cloned() else { return };
        self.tally.ending(ending);
        match ending {
            Ending::Interrupted => {}
            Ending::Handled => self.end(&subject, &of, End::Handled),
            Ending::Released | Ending::Misconfigured => {
                self.track(&subject, &of).level(attempts.handled).released += 1;
            }
            Ending::Deferred(due) => {
                let due = due.unwrap_or(Due::After(settings.defer_delay));
                let after = Attempts { handled: attempts.handled + 1, ..attempts };
                self.again_or_dead(&subject, &of, &settings, after, Expected::Exactly(due), false);
            }
            Ending::Failed | Ending::TimedOut => {
                let after = Attempts { handled: attempts.handled + 1, failed: attempts.failed + 1 };
                let exhausted = settings.retry.is_exhausted(after.failed);
                let bound = |random| settings.retry.delay(after.failed - 1, random);
                let due = Expected::Between(bound(-1.0), bound(1.0));
                self.again_or_dead(&subject, &of, &settings, after, due, exhausted);
            }
            Ending::Unknown if settings.on_unknown == OnUnknown::Skip => {
                self.end(&subject, &of, End::Discarded);
            }
            Ending::Rejected => self.killed(&subject, &of, attempts, dead_letters(&settings)),
            Ending::Invalid | Ending::Unknown => {
                let channel = settings.invalid.clone().or_else(|| dead_letters(&settings));
                self.killed(&subject, &of, attempts, channel);
            }
        }
    }

    fn again_or_dead(
        &mut self,
        subject: &Subject,
        of: &Address,
        settings: &SubscriptionSettings,
        after: Attempts,
        due: Expected,
        exhausted: bool,
    ) {
        let limit = matches!(settings.max_runs, MaxRuns::Limited(runs) if after.handled >= runs);
        if exhausted || limit {
            return self.killed(subject, of, after, dead_letters(settings));
        }
        self.track(subject, of).again.push(Again { attempts: after, due });
    }

    fn killed(&mut self, subject: &Subject, of: &Address, attempts: Attempts, channel: Option<Text>) {
        match channel {
            Some(channel) => self.track(subject, of).killed.push(Killed { attempts, channel }),
            None => self.end(subject, of, End::Discarded),
        }
    }
}

/// Returns the channel for messages that are given up; `None` if they are discarded.
fn dead_letters(settings: &SubscriptionSettings) -> Option<Text> {
    match &settings.dead_letter {
        DeadLetter::Default => Some(format!("{}.dlq", settings.topic).into()),
        DeadLetter::Topic(topic) => Some(topic.clone()),
        DeadLetter::Discard => None,
    }
}
