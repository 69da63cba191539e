//! Tests of every row of the outcome table.

use super::*;
use crate::settings::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use dwell_core::{
    Action, Address, Delivery, Due, Headers, Message, Outcome, Receipt, RetryOverride, RetryPolicy,
    Timestamp, wire,
};
use std::time::Duration;

const NOW: Timestamp = Timestamp(1_767_225_600_000);
const SECOND: Duration = Duration::from_secs(1);

fn settings() -> SubscriptionSettings {
    let retry = RetryPolicy { max_retries: 2, jitter: 0.0, ..RetryPolicy::default() };
    SubscriptionSettings { retry, ..SubscriptionSettings::new("orders", "mail") }
}

fn delivery(handled: u32, failed: u32) -> Delivery {
    let mut message = Message::new("a", "orders.placed", "42");
    message.headers = Headers::from_iter([("tag", "red"), ("tag", "blue")]);
    message.attempts.handled = handled;
    message.attempts.failed = failed;
    Delivery { message, deliveries: Some(1), due: None, problem: None, receipt: Receipt::new(1, 1) }
}

fn decided(settings: &SubscriptionSettings, delivery: Delivery, verdict: Verdict) -> Decision {
    decide(delivery, verdict, &Rules::new(settings, "worker"), NOW, 0.0)
}

fn again(due: Due) -> Action {
    Action::Move { to: Address::subscription("orders", "mail"), due }
}

fn to(topic: &str) -> Action {
    Action::Move { to: Address::topic(topic), due: Due::NOW }
}

fn counts(decision: &Decision) -> (u32, u32) {
    let attempts = decision.settle.delivery.message.attempts;
    (attempts.handled, attempts.failed)
}

fn header<'a>(decision: &'a Decision, name: &str) -> Option<&'a str> {
    decision.settle.delivery.message.headers.get_text(name)
}

#[test]
fn success_is_acked_with_its_result() {
    let decision = decided(&settings(), delivery(3, 1), Verdict::Ack { result: Some("r".into()) });
    assert_eq!(decision.settle.action, Action::Ack { result: Some("r".into()) });
    assert_eq!((counts(&decision), decision.settle.note.outcome), ((3, 1), Outcome::Handled));
}

#[test]
fn a_deferral_counts_a_run_but_no_failure() {
    let settings = SubscriptionSettings { defer_delay: SECOND * 7, ..settings() };
    let default = decided(&settings, delivery(0, 0), Verdict::defer_by_default());
    assert_eq!((default.settle.action.clone(), counts(&default)), (again(Due::After(SECOND * 7)), (1, 0)));
    let zero = decided(&settings, delivery(0, 0), Verdict::defer(Duration::ZERO));
    assert_eq!(zero.settle.action, again(Due::NOW));
    let own = decided(&settings, delivery(0, 0), Verdict::defer(SECOND * 30));
    assert_eq!(own.settle.action, again(Due::After(SECOND * 30)));
    assert!(!own.unacceptable && !own.dead);
}

#[test]
fn a_deferral_beyond_max_runs_is_dead_lettered() {
    let settings = SubscriptionSettings { max_runs: MaxRuns::Limited(3), ..settings() };
    assert_eq!(
        decided(&settings, delivery(1, 0), Verdict::defer(SECOND)).settle.action,
        again(Due::After(SECOND))
    );
    let last = decided(&settings, delivery(2, 0), Verdict::defer(SECOND));
    assert_eq!((last.settle.action.clone(), counts(&last), last.dead), (to("orders.dlq"), (3, 0), true));
    assert_eq!(header(&last, wire::REJECTION_REASON), Some("delivery_error"));
    let unlimited = SubscriptionSettings { max_runs: MaxRuns::Unlimited, ..settings };
    let decision = decided(&unlimited, delivery(u32::MAX, 0), Verdict::defer(SECOND));
    assert_eq!((decision.settle.action.clone(), counts(&decision).0), (again(Due::After(SECOND)), u32::MAX));
}

#[test]
fn a_failure_is_retried_with_backoff_then_dead_lettered() {
    let first = decided(&settings(), delivery(0, 0), Verdict::fail("boom"));
    assert_eq!((first.settle.action.clone(), counts(&first)), (again(Due::After(SECOND * 5)), (1, 1)));
    let second = decided(&settings(), delivery(1, 1), Verdict::fail("boom"));
    assert_eq!(second.settle.action, again(Due::After(SECOND * 10)));
    assert_eq!(header(&second, wire::LAST_ERROR), Some("boom"));
    let third = decided(&settings(), delivery(2, 2), Verdict::fail("boom"));
    assert_eq!((third.settle.action.clone(), counts(&third)), (to("orders.dlq"), (3, 3)));
    assert_eq!(
        (third.settle.note.outcome, third.dead, third.unacceptable),
        (Outcome::Exhausted, true, false)
    );
}

#[test]
fn deferrals_do_not_use_up_retries() {
    let decision = decided(&settings(), delivery(500, 1), Verdict::fail("boom"));
    assert_eq!(decision.settle.action, again(Due::After(SECOND * 10)));
}

#[test]
fn retry_limits_follow_message_then_type_then_subscription() {
    let special = RetryOverride { max_retries: Some(9), ..RetryOverride::default() };
    let settings =
        SubscriptionSettings { overrides: [("orders.placed".to_owned(), special)].into(), ..settings() };
    assert!(!decided(&settings, delivery(5, 5), Verdict::fail("boom")).dead);
    let mut own = delivery(5, 5);
    own.message.headers.append(wire::MAX_RETRIES, "3");
    assert!(decided(&settings, own, Verdict::fail("boom")).dead);
}

#[test]
fn a_rejected_message_is_dead_lettered_with_all_headers() {
    let decision = decided(&settings(), delivery(2, 1), Verdict::Reject("card declined".into()));
    assert_eq!(decision.settle.action, to("orders.dlq"));
    assert!(decision.unacceptable && decision.dead);
    let expected = [
        (wire::ORIGINAL_TOPIC, "orders"),
        (wire::ORIGINAL_TYPE, "orders.placed"),
        (wire::REJECTION_REASON, "delivery_error"),
        (wire::REJECTION_MESSAGE, "card declined"),
        (wire::REJECTED_AT, "2026-01-01T00:00:00.000Z"),
        (wire::SUBSCRIPTION, "mail"),
        (wire::LAST_ERROR, "card declined"),
    ];
    for (name, value) in expected {
        assert_eq!(header(&decision, name), Some(value), "{name}");
    }
    let message = &decision.settle.delivery.message;
    assert_eq!((&message.body[..], counts(&decision)), (&b"42"[..], (2, 1)));
    let tags: Vec<_> = message.headers.get_all("tag").collect();
    assert_eq!(tags, ["red", "blue"]);
}

#[test]
fn the_last_error_survives_a_rejection_for_another_reason() {
    let mut failed = delivery(1, 1);
    failed.message.headers.set(wire::LAST_ERROR, "boom");
    let decision = decided(&settings(), failed, Verdict::Reject("gave up".into()));
    assert_eq!(header(&decision, wire::LAST_ERROR), Some("boom"));
    assert_eq!(header(&decision, wire::REJECTION_MESSAGE), Some("gave up"));
}

#[test]
fn invalid_messages_go_to_the_invalid_channel_if_there_is_one() {
    let with = SubscriptionSettings { invalid: Some("orders.invalid".into()), ..settings() };
    let decision = decided(&with, delivery(0, 0), Verdict::Invalid("no json".into()));
    assert_eq!(decision.settle.action, to("orders.invalid"));
    assert_eq!(header(&decision, wire::REJECTION_REASON), Some("unacceptable"));
    assert_eq!(
        decided(&settings(), delivery(0, 0), Verdict::Invalid("no json".into())).settle.action,
        to("orders.dlq")
    );
    assert_eq!(decided(&with, delivery(0, 0), Verdict::Reject("no".into())).settle.action, to("orders.dlq"));
}

#[test]
fn discard_acks_and_is_reported() {
    let settings = SubscriptionSettings { dead_letter: DeadLetter::Discard, ..settings() };
    for verdict in [Verdict::Reject("no".into()), Verdict::Invalid("no".into()), Verdict::Poison] {
        let decision = decided(&settings, delivery(0, 0), verdict);
        assert_eq!(decision.settle.action, Action::ACK);
        assert!(decision.discarded && decision.dead);
    }
}

#[test]
fn an_unknown_type_is_invalid_or_skipped() {
    let decision = decided(&settings(), delivery(0, 0), Verdict::Unknown);
    assert_eq!(decision.settle.action, to("orders.dlq"));
    assert!(header(&decision, wire::REJECTION_MESSAGE).unwrap().contains("orders.placed"));
    let skip = SubscriptionSettings { on_unknown: OnUnknown::Skip, ..settings() };
    let decision = decided(&skip, delivery(0, 0), Verdict::Unknown);
    assert_eq!(
        (decision.settle.action.clone(), decision.settle.note.outcome),
        (Action::ACK, Outcome::Skipped)
    );
    assert!(!decision.unacceptable);
}

#[test]
fn a_release_changes_no_count_but_is_unacceptable() {
    let decision = decided(&settings(), delivery(2, 1), Verdict::Release("not now".into()));
    assert_eq!((decision.settle.action.clone(), counts(&decision)), (Action::Release, (2, 1)));
    assert!(decision.unacceptable && !decision.dead);
    let decision = decided(&settings(), delivery(2, 1), Verdict::Misconfigured("no state".into()));
    assert_eq!((decision.settle.action.clone(), counts(&decision)), (Action::Release, (2, 1)));
    assert!(!decision.unacceptable);
}

#[test]
fn poison_is_dead_lettered_and_changes_no_count() {
    let decision = decided(&settings(), delivery(1, 1), Verdict::Poison);
    assert_eq!((decision.settle.action.clone(), counts(&decision)), (to("orders.dlq"), (1, 1)));
    assert_eq!(header(&decision, wire::REJECTION_REASON), Some("poison"));
}

#[test]
fn lost_messages_wait_longer_each_time_until_quarantine() {
    let settings =
        SubscriptionSettings { recovery_delay: SECOND, max_runs: MaxRuns::Limited(1), ..settings() };
    let rules = Rules::new(&settings, "worker");
    let mut next = Delivery { deliveries: Some(2), ..delivery(0, 0) };
    for (wait, lost) in [(1, "1"), (2, "2"), (4, "3")] {
        let verdict = rules.before_run(&next, Some(4)).unwrap();
        assert_eq!(verdict, Verdict::Lost);
        let decision = decided(&settings, next, verdict);
        assert_eq!(decision.settle.action, again(Due::After(SECOND * wait)));
        assert_eq!(header(&decision, wire::LOST_COUNT), Some(lost));
        assert_eq!(counts(&decision), (0, 0), "a crash counts as neither a run nor a failure");
        next = Delivery { deliveries: Some(2), ..decision.settle.delivery };
    }
    assert_eq!(rules.before_run(&next, Some(4)), Some(Verdict::Poison), "four losses in total");
    next.deliveries = Some(1);
    assert_eq!(rules.before_run(&next, Some(4)), None, "runs after the delay");
}

#[test]
fn an_outcome_resets_the_number_of_losses() {
    let settings = SubscriptionSettings { recovery_delay: SECOND, ..settings() };
    let rules = Rules::new(&settings, "worker");
    for verdict in [Verdict::defer(SECOND), Verdict::fail("boom")] {
        let lost = Delivery { deliveries: Some(3), ..delivery(0, 0) };
        let lost = decided(&settings, lost, Verdict::Lost).settle.delivery;
        let decision = decided(&settings, Delivery { deliveries: Some(1), ..lost }, verdict);
        assert_eq!(header(&decision, wire::LOST_COUNT), None);
        let next = Delivery { deliveries: Some(2), ..decision.settle.delivery };
        assert_eq!(rules.before_run(&next, Some(3)), Some(Verdict::Lost), "one loss since the last run");
    }
}

#[test]
fn without_a_recovery_delay_lost_messages_run_immediately() {
    let rules = Rules::new(&settings(), "worker");
    let lost = Delivery { deliveries: Some(3), ..delivery(0, 0) };
    assert_eq!(rules.before_run(&lost, Some(3)), None);
    assert_eq!(rules.before_run(&lost, Some(2)), Some(Verdict::Poison));
}

#[test]
fn a_dead_letter_consumer_retries_at_the_maximum_delay() {
    let settings = SubscriptionSettings {
        max_runs: MaxRuns::Limited(1),
        ..SubscriptionSettings::new("orders.dlq", "triage")
    };
    for verdict in [Verdict::Reject("no".into()), Verdict::fail("boom"), Verdict::Invalid("no".into())] {
        let decision = decided(&settings, delivery(7, 7), verdict);
        let expected =
            Action::Move { to: Address::subscription("orders.dlq", "triage"), due: Due::After(SECOND * 60) };
        assert_eq!((decision.settle.action.clone(), decision.dead), (expected, false));
        assert_eq!(counts(&decision).0, 8);
        assert_eq!(header(&decision, wire::REJECTION_REASON), None, "only the first rejection adds headers");
    }
}

#[test]
fn a_dead_letter_consumer_discards_if_configured() {
    let settings = SubscriptionSettings {
        max_runs: MaxRuns::Limited(1),
        dead_letter: DeadLetter::Discard,
        ..SubscriptionSettings::new("orders.dlq", "triage")
    };
    for verdict in [Verdict::Reject("no".into()), Verdict::fail("boom"), Verdict::Invalid("no".into())] {
        let decision = decided(&settings, delivery(7, 7), verdict);
        assert_eq!((decision.settle.action.clone(), decision.discarded), (Action::ACK, true));
    }
}

#[test]
fn a_replay_returns_to_its_subscription_with_reset_counts() {
    let dead = decided(&settings(), delivery(3, 2), Verdict::fail("boom")).settle.delivery;
    let settle = replay(dead, Some("43".into()), "ada").unwrap();
    assert_eq!(settle.action, again(Due::NOW));
    let message = settle.delivery.message;
    assert_eq!((message.attempts, &message.body[..]), (Default::default(), &b"43"[..]));
    assert_eq!(message.headers, Headers::from_iter([("tag", "red"), ("tag", "blue")]));
    let (_, error) = *replay(delivery(0, 0), None, "ada").unwrap_err();
    assert!(error.to_string().contains(wire::ORIGINAL_TOPIC), "{error}");
}

#[test]
fn long_errors_are_truncated_at_a_character_boundary() {
    let decision = decided(&settings(), delivery(0, 0), Verdict::Reject("ü".repeat(4000).into()));
    let text = header(&decision, wire::REJECTION_MESSAGE).unwrap();
    assert_eq!(text.len(), 1024);
}
