//! One decision for each row of the outcome table.

use super::{
    Rejection, Verdict,
    reject::{stamp, stamp_error},
};
use crate::{
    planted::{Bug, planted},
    settings::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings},
};
use dwell_core::{
    Action, Address, Delivery, Due, Note, Outcome, RetryPolicies, RetryPolicy, Settle, Subscription, Text,
    Timestamp, wire,
};
use std::time::Duration;

/// What `decide` needs to know about a subscription.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Where it is, and where its failures go.
    pub subscription: Subscription,
    /// How often a message may run in all.
    pub max_runs: MaxRuns,
    /// How long a deferral waits that does not say.
    pub defer_delay: Duration,
    /// When failures are tried again.
    pub retry: RetryPolicies,
    /// What becomes of types that nobody here handles.
    pub on_unknown: OnUnknown,
    /// What is given up goes nowhere, because a setting says so.
    pub discard: bool,
    /// How long a message waits that a worker lost, before it runs again.
    pub recovery_delay: Duration,
    /// Who runs it, for the record.
    pub worker: Text,
}

impl Rules {
    /// The rules of a subscription, run by `worker`.
    pub fn new(settings: &SubscriptionSettings, worker: impl Into<Text>) -> Self {
        Self {
            subscription: settings.subscription(),
            max_runs: settings.max_runs,
            defer_delay: settings.defer_delay,
            retry: settings.retry_policies(),
            on_unknown: settings.on_unknown,
            discard: settings.dead_letter == DeadLetter::Discard,
            recovery_delay: settings.recovery_delay,
            worker: worker.into(),
        }
    }

    /// What is to become of a delivery before it is run: nothing, unless workers lost it without an outcome. Crashes are
    /// counted apart from failures; so many of them as `quarantine` says are too many.
    pub fn before_run(&self, delivery: &Delivery, quarantine: Option<u32>) -> Option<Verdict> {
        // Most are handed out for the first time.
        if delivery.deliveries.unwrap_or(1) <= 1 {
            return None;
        }
        if quarantine.is_some_and(|limit| lost(delivery) >= limit) {
            return Some(Verdict::Poison);
        }
        (!self.recovery_delay.is_zero()).then_some(Verdict::Lost)
    }

    /// The policy for a message: its own limit over its type's over the subscription's.
    fn policy(&self, delivery: &Delivery) -> RetryPolicy {
        let policy = self.retry.of(&delivery.message.kind);
        let own = delivery.message.headers.get_text(wire::MAX_RETRIES).and_then(|limit| limit.parse().ok());
        RetryPolicy { max_retries: own.unwrap_or(policy.max_retries), ..policy }
    }
}

/// What is to be done with a delivery.
#[derive(Debug)]
pub struct Decision {
    /// For the transport.
    pub settle: Settle,
    /// It was given up for good: worth a line at error level.
    pub dead: bool,
    /// It was given up with nowhere to go, because `discard` was asked for.
    pub discarded: bool,
    /// Counts toward the subscription's `unacceptable_message_limit`.
    pub unacceptable: bool,
}

/// Decides. `jitter` is a number in `-1.0 ..= 1.0`.
///
/// Both counts only ever go up here. Nothing is acknowledged because nobody caught it: an `Ack` is a success, a type
/// that was left alone on purpose, or a discard that a setting asked for.
pub fn decide(delivery: Delivery, verdict: Verdict, rules: &Rules, now: Timestamp, jitter: f64) -> Decision {
    let mut case = Case { delivery, rules, now };
    if planted(Bug::ReleaseCountedAsRun) && matches!(verdict, Verdict::Release(_)) {
        case.count_run();
    }
    match verdict {
        Verdict::Ack { result } => case.plain(Action::Ack { result }, Outcome::Handled, None),
        Verdict::Defer { due, reason } => case.defer(due, reason),
        Verdict::Fail(error) => case.fail(error, jitter),
        Verdict::Release(reason) => {
            case.unacceptable(|case| case.plain(Action::Release, Outcome::Released, Some(reason)))
        }
        Verdict::Misconfigured(error) => case.plain(Action::Release, Outcome::Released, Some(error)),
        Verdict::Reject(reason) => {
            case.unacceptable(|case| case.give_up(Rejection::DeliveryError, Outcome::Rejected, reason))
        }
        Verdict::Invalid(reason) => {
            case.unacceptable(|case| case.give_up(Rejection::Unacceptable, Outcome::Invalid, reason))
        }
        Verdict::Unknown if rules.on_unknown == OnUnknown::Skip => {
            case.plain(Action::ACK, Outcome::Skipped, None)
        }
        Verdict::Unknown => {
            let (kind, of) = (&case.delivery.message.kind, rules.subscription.address());
            let text = match kind.is_empty() {
                true => format!(
                    "it has no type, by which a handler in {of} would be found: set the header `{}`, or on SQLite the column `type`",
                    wire::TYPE
                ),
                false => format!("nobody handles messages of type `{kind}` in {of}"),
            };
            case.unacceptable(|case| case.give_up(Rejection::Unacceptable, Outcome::Invalid, text.into()))
        }
        Verdict::Poison => {
            let text = format!(
                "handed out {} times without an outcome: its worker crashed or lost it each time",
                lost(&case.delivery)
            );
            case.give_up(Rejection::Poison, Outcome::Poison, text.into())
        }
        Verdict::Lost => case.lost(jitter),
    }
}

/// How often a message was handed out without an outcome, this time not included: since it was put where it is, and
/// before it waited because of it.
fn lost(delivery: &Delivery) -> u32 {
    let before = delivery.message.headers.get_text(wire::LOST_COUNT).and_then(|count| count.parse().ok());
    delivery.deliveries.unwrap_or(1).saturating_sub(1).saturating_add(before.unwrap_or(0))
}

struct Case<'a> {
    delivery: Delivery,
    rules: &'a Rules,
    now: Timestamp,
}

impl Case<'_> {
    fn plain(self, action: Action, outcome: Outcome, error: Option<Text>) -> Decision {
        let note = Note { outcome, error, worker: self.rules.worker.clone(), moved_to: None };
        let settle = Settle { delivery: self.delivery, action, note };
        Decision { settle, dead: false, discarded: false, unacceptable: false }
    }

    fn unacceptable(self, decide: impl FnOnce(Self) -> Decision) -> Decision {
        Decision { unacceptable: true, ..decide(self) }
    }

    /// Again, after a run that came to an outcome. Its deliveries start anew there, and so does the count of those before.
    fn again(mut self, due: Due, outcome: Outcome, error: Option<Text>) -> Decision {
        self.delivery.message.headers.take(wire::LOST_COUNT);
        self.back(due, outcome, error)
    }

    /// Back to this subscription alone.
    fn back(self, due: Due, outcome: Outcome, error: Option<Text>) -> Decision {
        let mut to = self.rules.subscription.address();
        if planted(Bug::DeferralFansOut) && outcome == Outcome::Deferred {
            to = Address::Topic(self.rules.subscription.topic.clone());
        }
        self.plain(Action::Move { to, due }, outcome, error)
    }

    fn defer(mut self, due: Option<Due>, reason: Option<Text>) -> Decision {
        let handled = self.count_run();
        self.delivery.message.attempts.failed += u32::from(planted(Bug::DeferralCountedAsFailure));
        if self.rules.max_runs.is_reached(handled) {
            let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let text = format!("gave up after {handled} runs, the last one deferred it again{why}");
            return self.give_up(Rejection::DeliveryError, Outcome::Exhausted, text.into());
        }
        let due = due.unwrap_or(Due::After(self.rules.defer_delay));
        self.again(due, Outcome::Deferred, reason)
    }

    fn fail(mut self, error: Text, jitter: f64) -> Decision {
        let policy = self.rules.policy(&self.delivery);
        let handled = self.count_run();
        let failed = self.delivery.message.attempts.failed.saturating_add(1);
        self.delivery.message.attempts.failed = failed;
        stamp_error(&mut self.delivery.message, &error);
        let counted = failed - u32::from(planted(Bug::OneRetryTooMany));
        if policy.is_exhausted(counted) || self.rules.max_runs.is_reached(handled) {
            return self.give_up(Rejection::DeliveryError, Outcome::Exhausted, error);
        }
        let delay = policy.delay(failed - 1, jitter);
        self.again(Due::After(delay), Outcome::Failed, Some(error))
    }

    /// Again after a while: what took one worker down may take down the next. It uses up neither runs nor retries; its end
    /// is the quarantine.
    fn lost(mut self, jitter: f64) -> Decision {
        let times = lost(&self.delivery);
        let policy =
            RetryPolicy { base_delay: self.rules.recovery_delay, ..self.rules.policy(&self.delivery) };
        self.delivery.message.headers.set(wire::LOST_COUNT, times.to_string());
        let text = format!("handed out {times} times without an outcome: its worker crashed or lost it");
        // It may wait in a store, whose record of it begins there.
        stamp_error(&mut self.delivery.message, &text);
        let delay = policy.delay(times.saturating_sub(1), jitter);
        self.back(Due::After(delay), Outcome::Released, Some(text.into()))
    }

    fn count_run(&mut self) -> u32 {
        let attempts = &mut self.delivery.message.attempts;
        attempts.handled = attempts.handled.saturating_add(1);
        attempts.handled
    }

    /// To the channel for it. A dead-letter channel's own consumer has none: it tries again, at the longest delay, unless
    /// it is to discard.
    fn give_up(mut self, reason: Rejection, outcome: Outcome, description: Text) -> Decision {
        let subscription = &self.rules.subscription;
        let channel = match reason {
            Rejection::Unacceptable => subscription.invalid.as_ref().or(subscription.dead_letter.as_ref()),
            _ => subscription.dead_letter.as_ref(),
        };
        let Some(to) = channel.cloned() else {
            return self.without_channel(outcome, description);
        };
        let (topic, name) = (subscription.topic.clone(), subscription.name.clone());
        if !planted(Bug::DeadLetterWithoutStamps) {
            stamp(&mut self.delivery.message, reason, &description, &topic, Some(&name), self.now);
        }
        if self.delivery.message.headers.get(wire::LAST_ERROR).is_none() {
            stamp_error(&mut self.delivery.message, &description);
        }
        let decision = self.plain(Action::Move { to, due: Due::NOW }, outcome, Some(description));
        Decision { dead: true, ..decision }
    }

    fn without_channel(mut self, outcome: Outcome, description: Text) -> Decision {
        if wire::is_dead_letter_topic(&self.rules.subscription.topic) && !self.rules.discard {
            let delay = self.rules.policy(&self.delivery).max_delay;
            if !matches!(outcome, Outcome::Exhausted) {
                self.count_run();
            }
            return self.again(Due::After(delay), Outcome::Failed, Some(description));
        }
        let decision = self.plain(Action::ACK, outcome, Some(description));
        Decision { dead: true, discarded: true, ..decision }
    }
}
