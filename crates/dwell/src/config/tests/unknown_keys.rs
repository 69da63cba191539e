use super::{super::Config, refusal};

#[test]
fn an_unknown_key_is_refused_with_its_path_and_the_one_that_was_meant() {
    for (text, path, meant) in [
        ("[retry]\nmax_retrys = 3", "retry.max_retrys", "max_retries"),
        ("[transprot]\nurl = 'memory://'", "transprot", "transport"),
        ("[transport]\nurl_fil = 'x'", "transport.url_fil", "url_file"),
        ("[[retry.override]]\ntype = 'a'\njiter = 1", "retry.override[0].jiter", "jitter"),
        ("[[route]]\ntype = 'a'\ntopic = 'b'\n[[route]]\ntype = 'c'\ntopik = 'd'", "route[1].topik", "topic"),
        ("[[subscription]]\ntopic = 'a'\nname = 'b'\nlaese = '1s'", "subscription[0].laese", "lease"),
        (
            "[[subscription]]\ntopic = 'a'\nname = 'b'\nretry.basedelay = '1s'",
            "subscription[0].retry.basedelay",
            "base_delay",
        ),
        (
            "[[subscription]]\ntopic = 'a'\nname = 'b'\noverrides.'x.y'.max_retrys = 1",
            "subscription[0].overrides.\"x.y\".max_retrys",
            "max_retries",
        ),
    ] {
        let expected = format!("unknown key `{path}`; did you mean `{meant}`?");
        assert_eq!(refusal(Config::from_toml(text)), expected);
    }
}

#[test]
fn an_unknown_key_that_resembles_nothing_is_refused_with_what_is_known() {
    assert_eq!(
        refusal(Config::from_toml("[scheduler]\ncolour = 'red'")),
        "unknown key `scheduler.colour`; known here: allow_volatile, url, url_file",
    );
}

#[test]
fn an_unknown_key_cannot_write_to_the_terminal() {
    let text = refusal(Config::from_toml("\"\\u001b[31m\" = 1"));
    assert!(text.contains(r#"`"\u{1b}[31m"`"#), "{text}");
}

#[test]
fn what_must_be_a_table_or_a_list_is_refused_as_anything_else_without_its_value() {
    for (text, expected) in [
        ("transport = 'redis://app:hunter2@localhost'", "`transport` is a string, but it must be a table"),
        ("[[retry]]\nmax_retries = 1", "`retry` is a list, but it must be a table"),
        (
            "[route]\ntype = 'a'\ntopic = 'b'",
            "`route` is a table, but it must be a list of tables: write `[[route]]`",
        ),
        ("retry.override = true", "`retry.override` is true or false, but it must be a list"),
        ("subscription = [1]", "`subscription[0]` is a number, but it must be a table"),
        (
            "[[subscription]]\ntopic = 'a'\nname = 'b'\nretry = 3",
            "`subscription[0].retry` is a number, but it must be a table with some of the keys base_delay,",
        ),
    ] {
        let shown = refusal(Config::from_toml(text));
        assert!(shown.starts_with(expected), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_url_where_a_key_belongs_is_refused_without_its_password() {
    let text = refusal(Config::from_toml("[transport]\n'redis://app:hunter2@a' = 'x'"));
    assert!(
        text.starts_with("a URL, which is not shown, stands where a key belongs; known here: "),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
}
