//! The decision for each row of the outcome table.

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
    /// Address and channels of the subscription.
    pub subscription: Subscription,
    /// Maximum number of runs of a message.
    pub max_runs: MaxRuns,
    /// Delay of a deferral that sets none.
    pub defer_delay: Duration,
    /// Retry policies.
    pub retry: RetryPolicies,
    /// What happens to messages of a type without a handler.
    pub on_unknown: OnUnknown,
    /// Whether messages that are given up are discarded.
    pub discard: bool,
    /// Delay before a message that a worker lost runs again.
    pub recovery_delay: Duration,
    /// Name of the worker, for the record.
    pub worker: Text,
}

impl Rules {
    /// Creates the rules of a subscription that `worker` runs.
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

    /// Returns the verdict on a delivery that must not run now, because workers lost it without an
    /// outcome. `None` if it may run. Crashes are counted separately from failures, and
    /// `quarantine` is their maximum number.
    pub fn before_run(&self, delivery: &Delivery, quarantine: Option<u32>) -> Option<Verdict> {
        // Most messages are delivered for the first time.
        if delivery.deliveries.unwrap_or(1) <= 1 {
            return None;
        }
        if quarantine.is_some_and(|limit| lost(delivery) >= limit) {
            return Some(Verdict::Poison);
        }
        (!self.recovery_delay.is_zero()).then_some(Verdict::Lost)
    }

    /// Returns the retry policy of a message. The limit of the message overrides that of its type,
    /// which overrides that of the subscription.
    fn policy(&self, delivery: &Delivery) -> RetryPolicy {
        let policy = self.retry.of(&delivery.message.kind);
        let own = delivery.message.headers.get_text(wire::MAX_RETRIES).and_then(|limit| limit.parse().ok());
        RetryPolicy { max_retries: own.unwrap_or(policy.max_retries), ..policy }
    }
}

/// What is done with a delivery.
#[derive(Debug)]
pub struct Decision {
    /// Settlement for the transport.
    pub settle: Settle,
    /// Whether the message is given up, which is logged at level error.
    pub dead: bool,
    /// Whether the message is given up and discarded, because the settings request it.
    pub discarded: bool,
    /// Whether it counts towards the subscription's `unacceptable_message_limit`.
    pub unacceptable: bool,
}

/// Decides what is done with a delivery. `jitter` is a number from -1 to 1.
///
/// Both counts only grow here. A message is acked in three cases only: after a success, if its
/// unknown type is skipped, or if the settings discard it.
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
                    "the message has no type, so no handler in {of} matches: set the header `{}`, or on SQLite the column `type`",
                    wire::TYPE
                ),
                false => format!("no handler for messages of type `{kind}` in {of}"),
            };
            case.unacceptable(|case| case.give_up(Rejection::Unacceptable, Outcome::Invalid, text.into()))
        }
        Verdict::Poison => {
            let text = format!(
                "delivered {} times without an outcome: each time, the worker crashed or lost the lease",
                lost(&case.delivery)
            );
            case.give_up(Rejection::Poison, Outcome::Poison, text.into())
        }
        Verdict::Lost => case.lost(jitter),
    }
}

/// Returns the number of earlier deliveries without an outcome: those since the message was stored,
/// and those before it was delayed because of them.
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

    /// Runs the message again after an outcome. This resets the number of losses.
    fn again(mut self, due: Due, outcome: Outcome, error: Option<Text>) -> Decision {
        self.delivery.message.headers.take(wire::LOST_COUNT);
        self.back(due, outcome, error)
    }

    /// Moves the message to this subscription only.
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
            let text = format!("gave up after {handled} runs: the last run deferred the message again{why}");
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

    /// Runs the message again after a delay, because it may take down the next worker, too. This
    /// uses up neither runs nor retries; the quarantine limits it.
    fn lost(mut self, jitter: f64) -> Decision {
        let times = lost(&self.delivery);
        let policy =
            RetryPolicy { base_delay: self.rules.recovery_delay, ..self.rules.policy(&self.delivery) };
        self.delivery.message.headers.set(wire::LOST_COUNT, times.to_string());
        let text =
            format!("delivered {times} times without an outcome: the worker crashed or lost the lease");
        // The message may be delayed in a store, which has no record of its past.
        stamp_error(&mut self.delivery.message, &text);
        let delay = policy.delay(times.saturating_sub(1), jitter);
        self.back(Due::After(delay), Outcome::Released, Some(text.into()))
    }

    fn count_run(&mut self) -> u32 {
        let attempts = &mut self.delivery.message.attempts;
        attempts.handled = attempts.handled.saturating_add(1);
        attempts.handled
    }

    /// Moves the message to its channel. A consumer of a dead-letter channel has none, so the
    /// message runs again after the maximum delay, unless the settings discard it.
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
