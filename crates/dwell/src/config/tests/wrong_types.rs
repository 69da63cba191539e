use super::{super::Config, refusal};

const COUNT: &str = "a whole number from 0 to 4294967295";
const DURATION: &str = "a duration in text, such as \"90s\" or \"1h30m\"";

#[test]
fn a_wrong_type_is_refused_with_its_path_what_was_found_and_what_is_wanted() {
    let subscription = "[[subscription]]\ntopic = 'a'\nname = 'b'\n";
    for (text, path, found, wanted) in [
        ("[retry]\nmax_retries = 'three'", "retry.max_retries", "string \"three\"", COUNT),
        ("[retry]\nmax_retries = -1", "retry.max_retries", "integer `-1`", COUNT),
        ("[retry]\nmax_retries = 2020-01-01", "retry.max_retries", "string \"2020-01-01\"", COUNT),
        ("[retry]\nbase_delay = 90", "retry.base_delay", "integer `90`", DURATION),
        ("[retry]\njitter = inf", "retry.jitter", "string \"inf\"", "a number"),
        ("[scheduler]\nallow_volatile = 1", "scheduler.allow_volatile", "integer `1`", "true or false"),
        ("[scheduler]\nurl = true", "scheduler.url", "boolean `true`", "a string"),
        ("[transport]\nurl = ['redis://app:hunter2@a']", "transport.url", "a list", "a string"),
        ("[transport]\ndelay = 'later'", "transport.delay", "`later`", "`native` or `scheduler`"),
        ("[transport]\nbackground = 'off'", "transport.background", "`off`", "`here` or `elsewhere`"),
        ("[[route]]\ntype = 'a'\ntopic = 7", "route[0].topic", "integer `7`", "a string"),
        (
            "[[retry.override]]\ntype = 'a'\n[[retry.override]]\ntype = 'b'\njitter = nan",
            "retry.override[1].jitter",
            "string \"NaN\"",
            "a number",
        ),
        (
            &format!("{subscription}batch = -1"),
            "subscription[0].batch",
            "integer `-1`",
            "a whole number, 0 or more",
        ),
        (
            &format!("{subscription}max_runs = 'many'"),
            "subscription[0].max_runs",
            "string \"many\"",
            "a number of runs from 1, or `unlimited`",
        ),
        (
            &format!("{subscription}dead_letter = 'drop'"),
            "subscription[0].dead_letter",
            "`drop`",
            "one of `default`, `topic`, `discard`",
        ),
        (
            &format!("{subscription}retry.jitter = 'x'"),
            "subscription[0].retry.jitter",
            "string \"x\"",
            "a number",
        ),
        (
            &format!("{subscription}overrides.'x.y'.max_retries = 'q'"),
            "subscription[0].overrides.\"x.y\".max_retries",
            "string \"q\"",
            COUNT,
        ),
        ("[[subscription]]\ntopic = 1\nname = 'b'", "subscription[0].topic", "integer `1`", "a string"),
    ] {
        assert_eq!(refusal(Config::from_toml(text)), format!("`{path}`: found {found}, wanted {wanted}"));
    }
}

#[test]
fn the_item_at_fault_is_named_even_behind_items_that_are_right() {
    let right = "[[subscription]]\ntopic = 'a'\nname = 'b'\nbatch = 3\n".repeat(3);
    let shown = refusal(Config::from_toml(&format!("{right}batch_ = 1")));
    assert!(shown.contains("`subscription[2].batch_`"), "{shown}");
    let wrong = format!("{right}[[subscription]]\ntopic = 'a'\nname = 'c'\nbatch = 'x'");
    assert!(refusal(Config::from_toml(&wrong)).starts_with("`subscription[3].batch`: found string \"x\""));
}

#[test]
fn a_duration_that_cannot_be_read_says_why() {
    let shown = refusal(Config::from_toml("[retry]\nbase_delay = '90 sec'"));
    assert!(shown.starts_with("`retry.base_delay`: the duration `90 sec` has"), "{shown}");
}

#[test]
fn what_an_item_of_a_list_lacks_is_named() {
    for (text, expected) in [
        ("[[route]]\ntype = 'a'", "`route[0]`: `topic` is missing"),
        ("[[route]]\ntopic = 'a'", "`route[0]`: `type` is missing"),
        ("[[retry.override]]\nmax_retries = 3", "`retry.override[0]`: `type` is missing"),
        ("[[subscription]]\nname = 'b'\nbatch = 3", "`subscription[0]`: `topic` is missing"),
        ("[[subscription]]\ntopic = 'a'", "`subscription[0]`: `name` is missing"),
    ] {
        assert_eq!(refusal(Config::from_toml(text)), expected);
    }
}

#[test]
fn a_url_in_the_wrong_place_is_not_shown() {
    for key in ["transport.delay", "transport.background", "scheduler.allow_volatile", "retry.base_delay"] {
        let shown = refusal(Config::from_toml(&format!("{key} = 'redis://app:hunter2@localhost'")));
        assert!(shown.starts_with(&format!("`{key}`: found a URL, which is not shown, wanted ")), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
