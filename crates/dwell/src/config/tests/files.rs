//! Settings that come from files: the configuration itself, and secrets.

use super::{super::Config, refusal, with_env};
use std::{env, fs, path::PathBuf, process::Command};

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &str) -> Self {
        let path = env::temp_dir().join(format!("dwell-config-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_secret_can_come_from_a_file_of_its_own_and_is_trimmed() {
    let secret = Scratch::new("secret", "\n redis://app:hunter2@localhost \r\n");
    let config = Config::from_toml(&format!(
        "[transport]\nurl_file = {path:?}\n[scheduler]\nurl_file = {path:?}",
        path = secret.path()
    ));
    let config = config.unwrap();
    assert_eq!(config.transport.url, "redis://app:hunter2@localhost");
    assert_eq!(config.scheduler.url.as_deref(), Some("redis://app:hunter2@localhost"));
}

#[test]
fn a_secret_and_its_file_at_once_are_refused() {
    let text = "[scheduler]\nurl = 'redis://app:hunter2@a'\nurl_file = '/dev/null'";
    assert_eq!(
        refusal(Config::from_toml(text)),
        "`scheduler.url` and `scheduler.url_file` are both given: keep one of them"
    );
    let variables = [("DWELL_TRANSPORT__URL", "redis://app:hunter2@a"), ("DWELL_TRANSPORT__URL_FILE", "x")];
    assert_eq!(
        refusal(with_env(Config::default(), &variables)),
        "the environment variable `DWELL_TRANSPORT__URL` and the environment variable `DWELL_TRANSPORT__URL_FILE` are \
         both given: keep one of them"
    );
}

#[test]
fn either_form_of_a_secret_in_the_environment_beats_either_form_in_the_file() {
    let low = Scratch::new("low", "sqlite://low.db");
    let high = Scratch::new("high", "sqlite://high.db");
    for file in [format!("url_file = {:?}", low.path()), "url = 'sqlite://low.db'".to_owned()] {
        let file = Config::from_toml(&format!("[transport]\n{file}")).unwrap();
        for variable in
            [("DWELL_TRANSPORT__URL_FILE", high.path()), ("DWELL_TRANSPORT__URL", "sqlite://high.db")]
        {
            let config = with_env(file.clone(), &[variable]).unwrap();
            assert_eq!(config.transport.url, "sqlite://high.db");
        }
    }
}

#[test]
fn the_file_of_a_secret_must_be_there_and_hold_something() {
    let empty = Scratch::new("empty", " \n");
    for (file, problem) in [
        ("'/nowhere/at/all'", "`transport.url_file`: cannot read the file \"/nowhere/at/all\": "),
        (&format!("{:?}", empty.path()), "`transport.url_file`: the file "),
        ("3", "`transport.url_file` must be a string, the path of a file"),
        ("'redis://app:hunter2@a'", "`transport.url_file` is itself a URL, which is not shown"),
    ] {
        let shown = refusal(Config::from_toml(&format!("[transport]\nurl_file = {file}")));
        assert!(shown.starts_with(problem), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn load_names_the_file_that_it_cannot_read_or_understand() {
    let shown = refusal(Config::load("/nowhere/dwell.toml"));
    assert!(shown.starts_with("cannot read the configuration file /nowhere/dwell.toml: "), "{shown}");
    let file = Scratch::new("wrong.toml", "[retry]\nmax_retrys = 3");
    let shown = refusal(Config::load(&file.0));
    assert_eq!(
        shown,
        format!("{}: unknown key `retry.max_retrys`; did you mean `max_retries`?", file.path())
    );
}

#[test]
fn load_validates() {
    let file = Scratch::new("invalid.toml", "[retry]\njitter = 2");
    assert!(refusal(Config::load(&file.0)).contains("`retry.jitter` is 2"));
}

/// The file that a test loads when it runs in an environment that was changed.
const FILE: &str = "DWELL_CONFIG_OF_THIS_TEST";

/// A process cannot safely change its own environment, so a test runs itself once more in one that is changed, with the
/// path of the file in [`FILE`]. Returns what it said.
fn again_with(test: &str, file: &Scratch, variables: &[(&str, &str)]) -> String {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(FILE, file.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}

#[test]
fn load_lays_the_environment_of_the_process_over_the_file() {
    if let Ok(file) = env::var(FILE) {
        let config = Config::load(file).unwrap();
        assert_eq!((config.retry.policy.max_retries, config.retry.policy.jitter), (3, 0.0));
        return;
    }
    let file = Scratch::new("layers.toml", "[retry]\nmax_retries = 7\njitter = 0");
    let test = "load_lays_the_environment_of_the_process_over_the_file";
    again_with(test, &file, &[("DWELL_RETRY__MAX_RETRIES", "3")]);
}

#[test]
fn load_warns_of_a_variable_with_one_underscore_and_never_shows_its_value() {
    if let Ok(file) = env::var(FILE) {
        tracing_subscriber::fmt().with_ansi(false).without_time().init();
        assert_eq!(Config::load(file).unwrap(), Config::default());
        return;
    }
    let file = Scratch::new("underscore.toml", "");
    let test = "load_warns_of_a_variable_with_one_underscore_and_never_shows_its_value";
    let variables = [
        ("DWELL_TRANSPORT_URL", "redis://:hunter2@a"),
        ("DWELL_SCHEDULER_URL_FILE", "hunter2"),
        ("DWELL_TOKEN", "x"),
    ];
    let said = again_with(test, &file, &variables);
    // On one thread the name of the test comes first, on the same line.
    let warnings: Vec<_> = said.lines().filter(|line| line.contains("WARN dwell::config")).collect();
    let expected = [
        ("DWELL_SCHEDULER_URL_FILE", "DWELL_SCHEDULER__URL_FILE"),
        ("DWELL_TRANSPORT_URL", "DWELL_TRANSPORT__URL"),
    ]
    .map(|(name, meant)| format!("the environment variable `{name}` sets nothing: the setting is `{meant}`"));
    assert_eq!(warnings.len(), expected.len(), "{said}");
    for expected in &expected {
        assert!(warnings.iter().any(|warning| warning.ends_with(expected)), "{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
}
