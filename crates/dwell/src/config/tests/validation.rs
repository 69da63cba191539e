use super::{super::Config, read, refusal};

fn problem(text: &str) -> String {
    refusal(read(text).validate())
}

fn subscription(settings: &str) -> String {
    format!("[[subscription]]\ntopic = 'orders'\nname = 'mail'\n{settings}\n")
}

#[test]
fn the_defaults_are_valid() {
    Config::default().validate().unwrap();
}

#[test]
fn a_url_that_cannot_be_taken_apart_is_refused_without_quoting_it() {
    for section in ["transport", "scheduler"] {
        for url in ["hunter2", "", "redis://app:hunter2", "redis://app:hun#ter2@a", "redis://app:hunter2/@a"]
        {
            let shown = problem(&format!("[{section}]\nurl = {url:?}"));
            assert!(shown.starts_with(&format!("`{section}.url`: ")), "{shown}");
            assert!(!shown.contains("hunter2") && !shown.contains("hun#ter2"), "{shown}");
        }
    }
}

#[test]
fn jitter_must_lie_between_0_and_1() {
    for jitter in ["0", "1", "0.5"] {
        read(&format!("[retry]\njitter = {jitter}")).validate().unwrap();
    }
    assert_eq!(problem("[retry]\njitter = 1.01"), "`retry.jitter` is 1.01: it must lie between 0 and 1");
    assert!(problem("[retry]\njitter = -0.1").starts_with("`retry.jitter` is -0.1"));
    let special = "[[retry.override]]\ntype = 'a'\njitter = 2";
    assert!(problem(special).starts_with("`retry.override[0].jitter` is 2"));
    assert!(problem(&subscription("retry.jitter = 2")).starts_with("`subscription[0]`: "));
}

#[test]
fn the_longest_delay_must_not_be_shorter_than_the_first() {
    read("[retry]\nbase_delay = '1m'\nmax_delay = '1m'").validate().unwrap();
    assert_eq!(
        problem("[retry]\nbase_delay = '2m'"),
        "`retry.max_delay` is 1m, shorter than `base_delay`, 2m: raise the one or lower the other"
    );
    // With what falls back to the policy of all.
    let special = "[[retry.override]]\ntype = 'a'\nbase_delay = '2m'";
    assert!(problem(special).starts_with("`retry.override[0].max_delay` is 1m"));
    read(&format!("[retry]\nmax_delay = '1h'\n{special}")).validate().unwrap();
    // Of a subscription only where both are written: the other one may be set by the code.
    read(&subscription("retry.base_delay = '2m'")).validate().unwrap();
    let both = problem(&subscription("retry.base_delay = '2m'\nretry.max_delay = '1m'"));
    assert!(both.starts_with("`subscription[0].retry.max_delay` is 1m"), "{both}");
    let special = "overrides.'a.b' = { base_delay = '2m', max_delay = '1s' }";
    let special = problem(&subscription(special));
    assert!(special.starts_with("`subscription[0].overrides.\"a.b\".max_delay` is 1s"), "{special}");
}

#[test]
fn two_overrides_or_routes_for_one_type_are_refused() {
    let special = "[[retry.override]]\ntype = 'payments.charge'\n";
    assert_eq!(
        problem(&special.repeat(2)),
        "`retry.override[1]` is the second override for the type \"payments.charge\": keep one of them"
    );
    let route = "[[route]]\ntype = 'payments.charge'\ntopic = 'payments'\n";
    assert_eq!(
        problem(&route.repeat(2)),
        "`route[1]` is the second route of the type \"payments.charge\": keep one of them"
    );
}

#[test]
fn an_override_needs_a_type_and_time_to_run() {
    assert!(problem("[[retry.override]]\ntype = ''").starts_with("`retry.override[0].type` is empty"));
    let zero = problem("[[retry.override]]\ntype = 'a'\nhandler_timeout = '0s'");
    assert!(zero.starts_with("`retry.override[0].handler_timeout` is zero"), "{zero}");
}

#[test]
fn routes_lead_to_topics_that_users_may_send_to() {
    for topic in ["", "a b", "dwell.forward", "job.resize", "orders.dlq", "orders.invalid"] {
        let shown = problem(&format!("[[route]]\ntype = 'a'\ntopic = {topic:?}"));
        assert!(shown.starts_with(&format!("`route[0].topic`: the topic `{topic}` ")), "{shown}");
    }
    assert!(problem("[[route]]\ntype = ''\ntopic = 'a'").starts_with("`route[0].type` is empty"));
}

#[test]
fn a_subscription_that_could_work_on_no_transport_is_refused() {
    for (settings, named) in [
        ("concurrency = 0", "`concurrency`"),
        ("max_runs = 0", "`max_runs`"),
        ("lease = '0s'", "`lease`"),
        ("rate = 0", "`rate`"),
        ("dead_letter = { topic = 'dead' }", "`dead_letter`"),
        ("invalid = 'unreadable'", "`invalid`"),
        ("overrides.'a.b'.handler_timeout = '0s'", "`handler_timeout`"),
    ] {
        let shown = problem(&subscription(settings));
        assert!(shown.starts_with("`subscription[0]`: subscription orders/mail: "), "{shown}");
        assert!(shown.contains(named), "{shown}");
    }
    assert!(problem("[[subscription]]\ntopic = 'a b'\nname = 'c'").contains("contains ` `"));
    assert!(problem("[[subscription]]\ntopic = 'a'\nname = ''").contains("is empty"));
}

#[test]
fn a_setting_that_some_transports_support_is_left_to_the_transport() {
    read(&subscription("quarantine_after = 3")).validate().unwrap();
}

#[test]
fn two_entries_for_one_subscription_are_refused() {
    assert_eq!(
        problem(&subscription("").repeat(2)),
        "`subscription[1]` is the second entry for subscription orders/mail: keep one of them"
    );
    let others =
        "[[subscription]]\ntopic = 'orders'\nname = 'post'\n[[subscription]]\ntopic = 'bills'\nname = 'mail'";
    read(&format!("{}{others}", subscription(""))).validate().unwrap();
}
