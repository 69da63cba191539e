use super::*;
use std::{num::NonZeroUsize, time::Duration};

fn url(text: &str) -> TransportUrl {
    TransportUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal<T>(result: Result<T>) -> String {
    let Err(error) = result else { panic!("should be refused") };
    assert_eq!(error.kind(), ErrorKind::Config);
    error.to_string()
}

fn hosts(url: &TransportUrl) -> Vec<(&str, Option<u16>)> {
    url.hosts().iter().map(|(host, port)| (host.as_str(), *port)).collect()
}

#[test]
fn a_scheme_alone_is_accepted() {
    for text in ["memory://", "MEMORY://", "memory://?"] {
        let url = url(text);
        assert_eq!((url.scheme(), url.path(), url.hosts().len()), ("memory", "", 0));
        assert_eq!((url.username(), url.password().is_none()), (None, true));
        assert_eq!(url.expose(), text);
        url.options().finish().unwrap();
    }
}

#[test]
fn a_sqlite_url_names_a_file() {
    for (text, path) in [
        ("sqlite://dwell.db", "dwell.db"),
        ("sqlite://data/dwell.db", "data/dwell.db"),
        ("sqlite://./dwell.db", "./dwell.db"),
        ("sqlite://../dwell.db?cache=true", "../dwell.db"),
        ("sqlite:///var/lib/dwell.db", "/var/lib/dwell.db"),
        ("sqlite://:memory:", ":memory:"),
        (r"sqlite://C:\data\dwell.db", r"C:\data\dwell.db"),
        ("sqlite:///home/me@work/my data.db", "/home/me@work/my data.db"),
        ("sqlite:///a%20b%3Fc%23.db", "/a b?c#.db"),
        ("sqlite://größe.db", "größe.db"),
        ("sqlite://", ""),
    ] {
        let url = url(text);
        assert_eq!((url.path(), url.hosts().len()), (path, 0), "{text}");
        assert_eq!((url.username(), url.password().is_none()), (None, true), "{text}");
        assert_eq!(TransportUrl::parse(&url.to_string()).unwrap().path(), path, "{text}");
    }
}

#[test]
fn user_password_hosts_and_path_are_parsed() {
    for (text, username, password, expected, path) in [
        ("redis://localhost", None, None, vec![("localhost", None)], ""),
        ("redis://localhost/", None, None, vec![("localhost", None)], "/"),
        ("redis://u:p@host:6379/0?x=y", Some("u"), Some("p"), vec![("host", Some(6379))], "/0"),
        ("redis://:p@host", None, Some("p"), vec![("host", None)], ""),
        ("redis://u@host", Some("u"), None, vec![("host", None)], ""),
        ("redis://u:@host", Some("u"), Some(""), vec![("host", None)], ""),
        ("redis://u:p@/0", Some("u"), Some("p"), vec![], "/0"),
        ("redis://[::1]:6379/0", None, None, vec![("::1", Some(6379))], "/0"),
        ("redis://u:p@[fe80::1]", Some("u"), Some("p"), vec![("fe80::1", None)], ""),
        ("redis://u:a:b,c@d@host", Some("u"), Some("a:b,c@d"), vec![("host", None)], ""),
        ("redis://a%3Ab:p%2F%3F%23%40w%25@host", Some("a:b"), Some("p/?#@w%"), vec![("host", None)], ""),
        ("redis://u:gr%C3%B6%C3%9Fe@host", Some("u"), Some("größe"), vec![("host", None)], ""),
        (
            "kafka://h1:9092,h2:9093,[::2]:9094,h_4?acks=all",
            None,
            None,
            vec![("h1", Some(9092)), ("h2", Some(9093)), ("::2", Some(9094)), ("h_4", None)],
            "",
        ),
        ("kafka://u:p@h1:1,h2:65535", Some("u"), Some("p"), vec![("h1", Some(1)), ("h2", Some(65535))], ""),
        ("amqp://guest:guest@mq/%2F", Some("guest"), Some("guest"), vec![("mq", None)], "//"),
        ("amqp://mq/my%20host", None, None, vec![("mq", None)], "/my host"),
        ("nats+tls://a.b-c:4222", None, None, vec![("a.b-c", Some(4222))], ""),
    ] {
        let url = url(text);
        assert_eq!(url.username(), username, "{text}");
        assert_eq!(url.password().map(Secret::expose), password, "{text}");
        assert_eq!(hosts(&url), expected, "{text}");
        assert_eq!(url.path(), path, "{text}");
        assert_eq!(url.expose(), text);
    }
}

#[test]
fn invalid_urls_are_refused_with_the_reason() {
    for (text, why) in [
        ("", "`://` is missing"),
        ("localhost:6379", "`://` is missing"),
        ("redis:localhost", "`://` is missing"),
        ("redis:/localhost", "`://` is missing"),
        ("://host", "before `://`"),
        ("1redis://host", "before `://`"),
        ("re dis://host", "before `://`"),
        ("re_dis://host", "before `://`"),
        (" redis://host", "before `://`"),
        ("rédis://host", "before `://`"),
        ("redis://host\n", "control character"),
        ("redis://ho\0st", "control character"),
        ("redis://host#top", "write it `%23`"),
        ("redis://host/a@b", "write it `%40`"),
        ("redis://host?mail=a@b", "write it `%40`"),
        ("redis://host:", "port"),
        ("redis://host:0", "port"),
        ("redis://host:65536", "port"),
        ("redis://host:-1", "port"),
        ("redis://host:+1", "port"),
        ("redis://host:http", "port"),
        ("redis://:6379", "empty host"),
        ("kafka://h1:9092,", "empty host"),
        ("kafka://,h1", "empty host"),
        ("kafka://h1,,h2", "empty host"),
        ("redis://::1:6379", "in brackets"),
        ("redis://[::1", "without a `]`"),
        ("redis://[localhost]", "IPv6"),
        ("redis://[]", "IPv6"),
        ("redis://[::1]6379", "followed by"),
        ("redis://[::1]:", "port"),
        ("redis://my host", "character in a host"),
        ("redis://h%20st", "character in a host"),
        ("redis://größe", "character in a host"),
        ("redis://u%:p@host", "in its user name"),
        ("redis://u:p%zz@host", "in its password"),
        ("redis://u:p%FF@host", "in its password"),
        ("redis://host/%a", "in its path"),
        ("redis://host?a%=1", "in its option names"),
        ("redis://host?a=%1", "in its option values"),
        ("redis://host?flag", "without a value"),
        ("redis://host?=1", "without a name"),
        ("redis://host?a=1&b=2&a=1", "the option `a` more than once"),
        ("redis://host?a=1&%61=2", "the option `a` more than once"),
    ] {
        let shown = refusal(TransportUrl::parse(text));
        assert!(shown.contains(why), "{text}: {shown}");
    }
}

#[test]
fn a_printed_url_hides_only_its_secrets() {
    for (text, shown) in [
        ("memory://", "memory://"),
        ("REDIS://Host:6379/0", "redis://Host:6379/0"),
        ("redis://u:hunter2@h:1/0?lease=30s", "redis://u:***@h:1/0?lease=30s"),
        ("redis://:hunter2@h", "redis://:***@h"),
        ("nats://hunter2@h", "nats://***@h"),
        (
            "kafka://h1:1,[::1]:2,h3?a=b&sasl_password=hunter2",
            "kafka://h1:1,[::1]:2,h3?a=b&sasl_password=***",
        ),
        ("servicebus://h?SharedAccessKey=hunter2&x=1", "servicebus://h?SharedAccessKey=***&x=1"),
        ("a://h?API_TOKEN=hunter2", "a://h?API_TOKEN=***"),
        ("a://h?client.Secret=hunter2", "a://h?client.Secret=***"),
        ("a://h?SAS=hunter2", "a://h?SAS=***"),
        ("a://h?pass%77ord=hunter2", "a://h?password=***"),
        ("a://h?passwd=hunter2&pwd=hunter2&sig=hunter2", "a://h?passwd=***&pwd=***&sig=***"),
        ("amqp://h/a%2Fb%40c?n%26m=o%26p", "amqp://h/a/b%40c?n%26m=o%26p"),
    ] {
        let url = url(text);
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), format!("TransportUrl({shown})"));
        assert!(!format!("{:?}", url.password()).contains("hunter2"));
        assert!(!format!("{:?}", url.options()).contains("hunter2"));
        assert_eq!(url.expose(), text);
    }
}

#[test]
fn no_error_shows_a_misplaced_password() {
    for text in [
        "hunter2",
        "user:hunter2@host",
        "user:hunter2://host",
        "redis://user:hunter2",
        "redis://:hunter2",
        "redis://hunter2:hunter2:hunter2",
        "redis://user:hun/hunter2@host",
        "redis://user:1/hunter2@host",
        "redis://user:1?hunter2@host",
        "redis://user:1?a=hunter2@host",
        "redis://user:p@ss/hunter2@host",
        "redis://user:1#hunter2@host",
        "redis://user:hunter2%@host",
        "redis://user:hunter2@host:port",
        "redis://user:hunter2@[host]",
        "redis://user:hunter2\n@host",
        "redis://[hunter2]",
        "redis://host?password=a&hunter2",
        "redis://host?password=hunter2%",
        "redis://host?password=hunter2&password=hunter2",
    ] {
        let error = TransportUrl::parse(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Config, "{text}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}: {error}");
    }
}

#[test]
fn options_are_read_by_type() {
    let url = url(
        "redis://h?capacity=1000&lease=1h30m&tls=true&lazy=false&mode=a%20b%2Bc+d&delay=native&api_key=hunter2",
    );
    let mut options = url.options();
    assert_eq!(options.number::<usize>("capacity").unwrap(), Some(1000));
    assert_eq!(options.number::<NonZeroUsize>("capacity").unwrap(), NonZeroUsize::new(1000));
    assert_eq!(options.duration("lease").unwrap(), Some(Duration::from_secs(5400)));
    assert_eq!(options.flag("tls").unwrap(), Some(true));
    assert_eq!(options.flag("lazy").unwrap(), Some(false));
    assert_eq!(options.text("mode").unwrap(), Some("a b+c+d"));
    assert_eq!(options.one_of("delay", &["native", "scheduler"]).unwrap(), Some("native"));
    assert_eq!(options.secret("api_key").unwrap().unwrap().expose(), "hunter2");
    options.finish().unwrap();
}

#[test]
fn missing_options_are_none() {
    let url = url("redis://h");
    let mut options = url.options();
    assert_eq!(options.number::<u16>("a").unwrap(), None);
    assert_eq!(options.duration("b").unwrap(), None);
    assert_eq!(options.flag("c").unwrap(), None);
    assert_eq!(options.text("d").unwrap(), None);
    assert_eq!(options.one_of("e", &["x"]).unwrap(), None);
    assert!(options.secret("key").unwrap().is_none());
    options.finish().unwrap();
}

#[test]
fn an_option_of_the_wrong_type_is_refused_with_the_reason() {
    let url =
        url("redis://h?n=abc&large=70000&small=-200&minus=-1&zero=0&wait=90&tls=yes&delay=natve&empty=");
    let mut options = url.options();
    for (shown, parts) in [
        (refusal(options.number::<u16>("n")), ["`n` of redis:// is `abc`", "whole number"]),
        (refusal(options.number::<u16>("large")), ["`large`", "`70000`: it is too large"]),
        (refusal(options.number::<i8>("small")), ["`small`", "`-200`: it is too small"]),
        (refusal(options.number::<u16>("minus")), ["`minus`", "whole number"]),
        (refusal(options.number::<NonZeroUsize>("zero")), ["`zero`", "must not be zero"]),
        (refusal(options.duration("wait")), ["`wait`", "which unit?"]),
        (refusal(options.flag("tls")), ["`tls` of redis:// is `yes`", "`true` or `false`"]),
        (
            refusal(options.one_of("delay", &["native", "scheduler"])),
            ["must be `native` or `scheduler`", "did you mean `native`?"],
        ),
        (refusal(options.text("empty")), ["`empty`", "must not be empty"]),
        (refusal(options.number::<u16>("empty")), ["`empty`", "must not be empty"]),
    ] {
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    }
}

#[test]
fn no_option_error_shows_a_secret() {
    let url = url("redis://h?key=hunter2");
    let mut options = url.options();
    for shown in [
        refusal(options.number::<u16>("key")),
        refusal(options.duration("key")),
        refusal(options.flag("key")),
        refusal(options.one_of("key", &["hunter1", "x"])),
    ] {
        assert!(shown.contains("`key` of redis:// is ***") && !shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("did you mean"), "{shown}");
    }
    assert!(!refusal(url.options().finish()).contains("hunter2"));
}

#[test]
fn an_unknown_option_is_refused_with_a_suggestion() {
    let url = url("memory://?lease=5s&capasity=1000");
    let mut options = url.options();
    options.number::<usize>("capacity").unwrap();
    options.duration("lease").unwrap();
    assert_eq!(
        refusal(options.finish()),
        "unknown option `capasity` for memory://; did you mean `capacity`? known options: capacity, lease"
    );

    let mut options = url.options();
    options.text("lease").unwrap();
    assert_eq!(refusal(options.finish()), "unknown option `capasity` for memory://; known options: lease");
    assert_eq!(refusal(url.options().finish()), "unknown option `lease` for memory://; it takes no options");
}

#[test]
fn an_unknown_scheme_is_refused_with_a_suggestion() {
    let known = ["memory", "sqlite", "redis"];
    for (text, expected) in [
        (
            "reddis://u:hunter2@h",
            "there is no transport for `reddis://`; did you mean `redis://`? known schemes: memory://, sqlite://, redis://",
        ),
        (
            "rabbitmq://h",
            "there is no transport for `rabbitmq://`; known schemes: memory://, sqlite://, redis://",
        ),
    ] {
        let error = url(text).unknown_scheme_error(&known);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_url_implements_from_str() {
    let url: TransportUrl = "redis://h".parse().unwrap();
    assert_eq!(url.scheme(), "redis");
    assert!("redis".parse::<TransportUrl>().is_err());
}
