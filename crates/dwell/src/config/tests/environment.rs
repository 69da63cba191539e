use super::{super::*, read, refusal, with_env};

#[test]
fn a_variable_beats_the_file_and_the_file_beats_the_default() {
    let file = read("[retry]\nmax_retries = 7\nbase_delay = '10s'\n[transport]\nurl = 'sqlite://file.db'");
    let config = with_env(file.clone(), &[("DWELL_RETRY__MAX_RETRIES", "3")]).unwrap();
    assert_eq!(config.retry.policy, RetryPolicy { max_retries: 3, ..file.retry.policy });
    assert_eq!(config.transport, file.transport);
}

#[test]
fn a_variable_with_one_underscore_sets_nothing_and_the_setting_that_was_meant_is_known() {
    let config = with_env(Config::default(), &[("DWELL_TRANSPORT_URL", "sqlite://lost.db")]).unwrap();
    assert_eq!(config, Config::default());
    let meant = |name| super::super::read::with_both_underscores(name);
    assert_eq!(meant("DWELL_TRANSPORT_URL").as_deref(), Some("DWELL_TRANSPORT__URL"));
    assert_eq!(meant("DWELL_RETRY_MAX_RETRIES").as_deref(), Some("DWELL_RETRY__MAX_RETRIES"));
    assert_eq!(meant("DWELL_TRANSPORT_URL_FILE").as_deref(), Some("DWELL_TRANSPORT__URL_FILE"));
    for ours in ["DWELL_TOKEN", "DWELL_URL", "DWELL_TEST_REDIS_URL", "DWELL_EXAMPLE_URL", "TRANSPORT_URL"] {
        assert_eq!(meant(ours), None, "{ours}");
    }
}

#[test]
fn every_single_value_can_be_set() {
    let variables = [
        ("DWELL_TRANSPORT__URL", "redis://localhost"),
        ("DWELL_TRANSPORT__DELAY", "scheduler"),
        ("DWELL_TRANSPORT__BACKGROUND", "elsewhere"),
        ("DWELL_TRANSPORT__OUTBOX", "true"),
        ("DWELL_TRANSPORT__ON_MISSING", "validate"),
        ("DWELL_SCHEDULER__URL", "sqlite://wait.db"),
        ("DWELL_SCHEDULER__ALLOW_VOLATILE", "true"),
        ("DWELL_RETRY__MAX_RETRIES", "9"),
        ("DWELL_RETRY__BASE_DELAY", "250ms"),
        ("DWELL_RETRY__MAX_DELAY", "1h"),
        ("DWELL_RETRY__JITTER", "0.5"),
    ];
    let expected = read(
        r#"
        [transport]
        url = "redis://localhost"
        delay = "scheduler"
        background = "elsewhere"
        outbox = true
        on_missing = "validate"
        [scheduler]
        url = "sqlite://wait.db"
        allow_volatile = true
        [retry]
        max_retries = 9
        base_delay = "250ms"
        max_delay = "1h"
        jitter = 0.5
        "#,
    );
    assert_eq!(with_env(Config::default(), &variables).unwrap(), expected);
}

#[test]
fn a_text_that_looks_like_a_number_stays_a_text() {
    for text in ["5", "true", "null"] {
        let config = with_env(Config::default(), &[("DWELL_SCHEDULER__URL", text)]).unwrap();
        assert_eq!(config.scheduler.url.as_deref(), Some(text));
    }
}

#[test]
fn what_the_file_lists_stays_beside_the_environment() {
    let file = read(
        "[[route]]\ntype = 'a'\ntopic = 'b'\n[[retry.override]]\ntype = 'a'\njitter = 1\n\
         [[subscription]]\ntopic = 'a'\nname = 'b'\nbatch = 3",
    );
    let config = with_env(file.clone(), &[("DWELL_RETRY__JITTER", "0")]).unwrap();
    assert_eq!((&config.routes, &config.subscriptions), (&file.routes, &file.subscriptions));
    assert_eq!(config.retry.overrides, file.retry.overrides);
    assert_eq!(config.retry.policy.jitter, 0.0);
}

#[test]
fn variables_that_are_no_settings_are_ignored() {
    let variables = [
        ("DWELL_URL", "x"),
        ("DWELL_TEST_REDIS_URL", "x"),
        ("RETRY__MAX_RETRIES", "x"),
        ("MY_DWELL_A__B", "x"),
        ("dwell_retry__jitter", "x"),
    ];
    assert_eq!(with_env(Config::default(), &variables).unwrap(), Config::default());
}

#[test]
fn a_variable_that_sets_nothing_is_refused_with_the_one_that_was_meant() {
    for (variable, meant) in [
        ("DWELL_RETRY__MAX_RETRYS", "DWELL_RETRY__MAX_RETRIES"),
        ("DWELL_SCHEDULR__URL", "DWELL_SCHEDULER__URL"),
        ("DWELL_TRANSPORT__URL_FIEL", "DWELL_TRANSPORT__URL_FILE"),
        ("DWELL_TRANSPORT__URL__X", "DWELL_TRANSPORT__URL"),
    ] {
        let expected = format!("the environment variable `{variable}` sets nothing; did you mean `{meant}`?");
        assert_eq!(refusal(with_env(Config::default(), &[(variable, "hunter2")])), expected);
    }
    for variable in ["DWELL_COLOUR__RED", "DWELL___X", "DWELL_RETRY__"] {
        let shown = refusal(with_env(Config::default(), &[(variable, "hunter2")]));
        assert!(
            shown.starts_with(&format!("the environment variable `{variable}` sets nothing; known")),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_setting_in_lower_case_is_refused() {
    let shown = refusal(with_env(Config::default(), &[("DWELL_retry__jitter", "0")]));
    assert!(shown.ends_with("settings are in upper case, `DWELL_RETRY__JITTER`"), "{shown}");
}

#[test]
fn lists_cannot_be_set() {
    for (variable, list) in [
        ("DWELL_ROUTE__0__TYPE", "route"),
        ("DWELL_RETRY__OVERRIDE", "retry.override"),
        ("DWELL_RETRY__OVERRIDE__JITTER", "retry.override"),
        ("DWELL_SUBSCRIPTION__ORDERS__BATCH", "subscription"),
    ] {
        let shown = refusal(with_env(Config::default(), &[(variable, "1")]));
        assert!(shown.starts_with("the environment cannot set lists"), "{shown}");
        assert!(shown.ends_with(&format!("write `[[{list}]]` in the configuration file")), "{shown}");
    }
}

#[test]
fn a_wrong_value_is_refused_naming_the_variable() {
    for (variable, value, problem) in [
        ("DWELL_RETRY__MAX_RETRIES", "three", "found string \"three\", wanted a whole number"),
        ("DWELL_RETRY__MAX_RETRIES", "-1", "found string \"-1\", wanted a whole number"),
        ("DWELL_RETRY__MAX_RETRIES", "", "found string \"\", wanted a whole number"),
        ("DWELL_RETRY__BASE_DELAY", "5", "the duration `5` is a bare number"),
        ("DWELL_SCHEDULER__ALLOW_VOLATILE", "yes", "found string \"yes\", wanted true or false"),
        (
            "DWELL_TRANSPORT__DELAY",
            "redis://app:hunter2@a",
            "found a URL, which is not shown, wanted `native`",
        ),
    ] {
        let shown = refusal(with_env(Config::default(), &[(variable, value)]));
        assert!(shown.starts_with(&format!("the environment variable `{variable}`: {problem}")), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
