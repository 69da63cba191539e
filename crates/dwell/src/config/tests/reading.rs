use super::{super::*, read, refusal};
use std::time::Duration;

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(read(""), Config::default());
    let config = Config::default();
    assert_eq!(config.transport.url, "memory://");
    assert_eq!((config.transport.delay, config.transport.background), (DelayMode::Native, Background::Here));
    assert_eq!((&config.scheduler.url, config.scheduler.allow_volatile), (&None, false));
    assert_eq!(config.retry.policy, RetryPolicy::default());
}

#[test]
fn every_key_of_transport_and_scheduler_is_read() {
    let config = read(
        r#"
        [transport]
        url = "kafka://localhost:9092"
        delay = "scheduler"
        background = "elsewhere"
        outbox = true
        on_missing = "validate"
        [scheduler]
        url = "sqlite://dwell.db"
        allow_volatile = true
        "#,
    );
    let transport = TransportConfig {
        url: "kafka://localhost:9092".to_owned(),
        delay: DelayMode::Scheduler,
        background: Background::Elsewhere,
        outbox: true,
        on_missing: OnMissing::Validate,
    };
    assert_eq!(config.transport, transport);
    let scheduler = SchedulerConfig { url: Some("sqlite://dwell.db".to_owned()), allow_volatile: true };
    assert_eq!(config.scheduler, scheduler);
}

#[test]
fn a_field_of_the_retry_policy_that_is_not_written_keeps_its_built_in_value() {
    let policy = read("[retry]\nbase_delay = \"10s\"\njitter = 0").retry.policy;
    let expected = RetryPolicy { base_delay: Duration::from_secs(10), jitter: 0.0, ..RetryPolicy::default() };
    assert_eq!(policy, expected);
}

#[test]
fn overrides_are_found_by_their_full_type_name() {
    let config = read(
        r#"
        [[retry.override]]
        type = "payments.charge"
        max_retries = 20
        handler_timeout = "2m"
        [[retry.override]]
        type = "payments.refund"
        jitter = 0.5
        "#,
    );
    let overrides = config.overrides();
    assert_eq!(overrides.len(), 2);
    let charge = RetryOverride {
        max_retries: Some(20),
        handler_timeout: Some(Duration::from_secs(120)),
        ..RetryOverride::default()
    };
    assert_eq!(overrides["payments.charge"], charge);
    assert_eq!(overrides["payments.refund"].jitter, Some(0.5));
}

#[test]
fn routes_are_found_by_type() {
    let config = read(
        "[[route]]\ntype = \"payments.charge\"\ntopic = \"payments\"\n\
         [[route]]\ntype = \"payments.refund\"\ntopic = \"refunds\"",
    );
    assert_eq!(config.topic_of("payments.charge"), Some("payments"));
    assert_eq!(config.topic_of("payments.refund"), Some("refunds"));
    assert_eq!(config.topic_of("charge"), None);
}

#[test]
fn a_syntax_error_names_the_line_and_quotes_nothing() {
    for (text, line) in [
        ("[transport]\nurl = \"redis://app:hunter2@localhost", 2),
        ("\n\n[transport]\nurl = redis://app:hunter2@localhost\n", 4),
        ("[transport]\nurl = \"redis://app:hunter2@a\"\nurl = \"redis://app:hunter2@b\"", 3),
        ("[retry\n", 1),
        ("[transport]\r\nurl = 'memory://' hunter2", 2),
    ] {
        let error = Config::from_toml(text).unwrap_err();
        assert!(std::error::Error::source(&error).is_none(), "a source would quote the line");
        let shown = refusal(Err::<(), _>(error));
        assert!(shown.starts_with(&format!("line {line} is not TOML: ")), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_configuration_within_another_is_as_strict() {
    #[derive(Debug, Deserialize)]
    struct Application {
        messaging: Config,
    }
    let application: Application = toml::from_str("[messaging.retry]\nmax_retries = 3").unwrap();
    assert_eq!(application.messaging.retry.policy.max_retries, 3);
    for text in [
        "[messaging.retry]\nmax_retrys = 3",
        "[messaging.transport]\nurrl = ''",
        "[[messaging.route]]\ntype = 'a'\ntopic = 'b'\nqueue = 'c'",
        "[[messaging.retry.override]]\ntype = 'a'\nmax_retrys = 3",
        "[[messaging.subscription]]\ntopic = 'a'\nname = 'b'\nbatsh = 3",
    ] {
        let error = toml::from_str::<Application>(text).unwrap_err();
        assert!(error.message().contains("unknown field"), "{error}");
    }
}
