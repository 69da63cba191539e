use super::{super::*, read};

const EVERYTHING: &str = r#"
    [transport]
    url = "kafka://localhost:9092"
    [scheduler]
    url = "sqlite://dwell.db"
    [retry]
    max_retries = 7
    [[retry.override]]
    type = "payments.charge"
    base_delay = "10s"
    [[route]]
    type = "payments.charge"
    topic = "payments"
    [[subscription]]
    topic = "orders"
    name = "mail"
    batch = 3
    retry.jitter = 0.5
    dead_letter = { topic = "failed.dlq" }
    overrides = { "a.b" = { max_retries = 3 } }
    [[subscription]]
    topic = "orders"
    name = "post"
    concurrency = 8
"#;

#[test]
fn what_is_shown_can_be_read_back() {
    for config in [read(EVERYTHING), Config::default()] {
        assert_eq!(read(&config.to_string()), config);
    }
}

#[test]
fn what_is_serialised_can_be_read_back() {
    let config = read(EVERYTHING);
    let value = serde_json::to_value(&config).unwrap();
    assert_eq!(serde_json::from_value::<Config>(value).unwrap(), config);
}

#[test]
fn secrets_are_shown_neither_as_toml_nor_for_debugging() {
    let config = read(
        "[transport]\nurl = 'redis://app:hunter2@localhost?lease=30s'\n[scheduler]\nurl = 'amqp://h?token=hunter2'",
    );
    let broken = read("[transport]\nurl = 'hunter2'\n[scheduler]\nurl = 'redis://app:hunter2@a#b'");
    for text in [config.to_string(), format!("{config:?}"), broken.to_string(), format!("{broken:?}")] {
        assert!(!text.contains("hunter2") && text.contains("***"), "{text}");
    }
    let text = config.to_string();
    assert!(text.contains("url = \"redis://app:***@localhost?lease=30s\""), "{text}");
    assert!(text.contains("url = \"amqp://h?token=***\""), "{text}");
}

#[test]
fn what_is_null_elsewhere_is_not_written_here() {
    let overlay = serde_json::json!({ "topic": "a", "name": "b", "rate": null, "batch": 3 });
    let overlay: Overlay = serde_json::from_value(overlay).unwrap();
    assert_eq!(overlay.settings().keys().collect::<Vec<_>>(), ["batch"]);

    let overlay =
        serde_json::json!({ "topic": "a", "name": "b", "overrides": { "c.d": { "jitter": null } } });
    let subscriptions = vec![serde_json::from_value(overlay).unwrap()];
    let text = Config { subscriptions, ..Config::default() }.to_string();
    assert!(text.ends_with("[subscription.overrides.\"c.d\"]"), "{text}");
}

#[test]
fn every_setting_is_shown_for_debugging() {
    let config = Config::default();
    let shown = format!("{config:?}");
    let value = serde_json::to_value(&config).unwrap();
    for key in
        ["transport", "scheduler", "retry"].iter().flat_map(|part| value[part].as_object().unwrap().keys())
    {
        assert!(shown.contains(&format!("{key}: ")), "`{key}` is missing: {shown}");
    }
}
