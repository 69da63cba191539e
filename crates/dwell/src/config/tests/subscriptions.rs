use super::{super::*, read, refusal};
use dwell_core::OnMissing;
use dwell_engine::{DeadLetter, MaxRuns, OnUnknown, SubscriptionSettings};
use std::time::Duration;

fn overlay(settings: &str) -> Overlay {
    let config = read(&format!("[[subscription]]\ntopic = 'orders'\nname = 'mail'\n{settings}"));
    config.overlay("orders", "mail").unwrap().clone()
}

fn orders_mail() -> SubscriptionSettings {
    SubscriptionSettings::new("orders", "mail")
}

#[test]
fn an_overlay_is_found_by_topic_and_name() {
    let config = read(
        "[[subscription]]\ntopic = 'a'\nname = 'x'\nbatch = 1\n[[subscription]]\ntopic = 'a'\nname = 'y'\nbatch = 2",
    );
    assert_eq!(config.overlay("a", "y").unwrap().settings()["batch"], 2);
    assert_eq!(config.overlay("b", "y"), None);
    assert_eq!(config.overlay("a", "z"), None);
}

#[test]
fn only_what_is_written_changes() {
    let code = SubscriptionSettings {
        concurrency: 4,
        rate: Some(2.5),
        invalid: Some("orders.invalid".into()),
        dead_letter: DeadLetter::Discard,
        max_runs: MaxRuns::Unlimited,
        ..orders_mail()
    };
    let changed = overlay("batch = 50\nlease = '1m'").apply(code.clone()).unwrap();
    assert_eq!(changed, SubscriptionSettings { batch: 50, lease: Duration::from_secs(60), ..code.clone() });
    assert_eq!(overlay("").apply(code.clone()).unwrap(), code);
}

#[test]
fn every_setting_can_be_written() {
    let text = r#"
        performers = 2
        concurrency = 3
        batch = 4
        rate = 5
        ordered = false
        max_runs = "unlimited"
        defer_delay = "6s"
        retry = { max_retries = 7, base_delay = "8s", max_delay = "9m", jitter = 0.1 }
        overrides = { "payments.charge" = { max_retries = 10, handler_timeout = "11s" } }
        unacceptable_message_limit = 12
        unacceptable_message_window = "13s"
        channel_failure_delay = "14s"
        release_delay = "15s"
        handler_timeout = "16s"
        shutdown_timeout = "17s"
        lease = "18s"
        command = true
        on_missing = "validate"
        dead_letter = { topic = "failed.dlq" }
        invalid = "orders.invalid"
        on_unknown = "skip"
        quarantine_after = 19
        recovery_delay = "20s"
    "#;
    let charge = RetryOverride {
        max_retries: Some(10),
        handler_timeout: Some(Duration::from_secs(11)),
        ..RetryOverride::default()
    };
    let expected = SubscriptionSettings {
        topic: "orders".into(),
        name: "mail".into(),
        performers: 2,
        concurrency: 3,
        batch: 4,
        rate: Some(5.0),
        ordered: false,
        max_runs: MaxRuns::Unlimited,
        defer_delay: Duration::from_secs(6),
        retry: RetryPolicy {
            max_retries: 7,
            base_delay: Duration::from_secs(8),
            max_delay: Duration::from_secs(540),
            jitter: 0.1,
        },
        overrides: [("payments.charge".to_owned(), charge)].into(),
        unacceptable_message_limit: 12,
        unacceptable_message_window: Some(Duration::from_secs(13)),
        channel_failure_delay: Duration::from_secs(14),
        release_delay: Duration::from_secs(15),
        handler_timeout: Duration::from_secs(16),
        shutdown_timeout: Duration::from_secs(17),
        lease: Duration::from_secs(18),
        command: true,
        on_missing: OnMissing::Validate,
        dead_letter: DeadLetter::Topic("failed.dlq".into()),
        invalid: Some("orders.invalid".into()),
        on_unknown: OnUnknown::Skip,
        quarantine_after: Some(19),
        recovery_delay: Duration::from_secs(20),
    };
    assert_eq!(overlay(text).apply(orders_mail()).unwrap(), expected);
}

#[test]
fn tables_within_are_laid_over_key_by_key() {
    let special = RetryOverride { jitter: Some(0.5), max_retries: Some(1), ..RetryOverride::default() };
    let code = SubscriptionSettings {
        retry: RetryPolicy { max_retries: 9, jitter: 0.9, ..RetryPolicy::default() },
        overrides: [("a.b".to_owned(), special), ("c.d".to_owned(), special)].into(),
        ..orders_mail()
    };
    let changed =
        overlay("retry.jitter = 0\noverrides.'a.b'.max_retries = 2\noverrides.'e.f'.max_retries = 3");
    let changed = changed.apply(code.clone()).unwrap();
    assert_eq!(changed.retry, RetryPolicy { jitter: 0.0, ..code.retry });
    assert_eq!(changed.overrides["a.b"], RetryOverride { max_retries: Some(2), ..special });
    assert_eq!(changed.overrides["c.d"], special);
    assert_eq!(changed.overrides["e.f"], RetryOverride { max_retries: Some(3), ..RetryOverride::default() });
}

#[test]
fn one_form_of_dead_letter_replaces_another() {
    let to = |topic: &str| DeadLetter::Topic(topic.into());
    for (written, code, expected) in [
        ("{ topic = 'a.dlq' }", DeadLetter::Default, to("a.dlq")),
        ("{ topic = 'a.dlq' }", to("b.dlq"), to("a.dlq")),
        ("'discard'", to("b.dlq"), DeadLetter::Discard),
        ("'default'", DeadLetter::Discard, DeadLetter::Default),
    ] {
        let code = SubscriptionSettings { dead_letter: code, ..orders_mail() };
        let changed = overlay(&format!("dead_letter = {written}")).apply(code).unwrap();
        assert_eq!(changed.dead_letter, expected);
    }
}

#[test]
fn second_names_are_read_as_first_names() {
    let overlay = overlay("requeue_count = 3\nrequeue_delay = '5s'");
    assert_eq!(overlay.settings().keys().collect::<Vec<_>>(), ["defer_delay", "max_runs"]);
    let changed = overlay.apply(orders_mail()).unwrap();
    assert_eq!((changed.max_runs, changed.defer_delay), (MaxRuns::Limited(3), Duration::from_secs(5)));
}

#[test]
fn two_names_of_one_setting_at_once_are_refused() {
    let text = "[[subscription]]\ntopic = 'a'\nname = 'b'\nmax_runs = 3\nrequeue_count = 4";
    assert_eq!(
        refusal(Config::from_toml(text)),
        "`subscription[0]`: `requeue_count` and `max_runs` are two names for one setting: keep one of them"
    );
}

#[test]
fn topic_and_name_select_and_never_change() {
    let overlay = overlay("batch = 3");
    assert!(!overlay.settings().contains_key("topic") && !overlay.settings().contains_key("name"));
    for other in [SubscriptionSettings::new("orders", "post"), SubscriptionSettings::new("bills", "mail")] {
        let shown = refusal(overlay.apply(other));
        assert!(shown.contains("subscription orders/mail cannot be applied to subscription"), "{shown}");
    }
}
