//! Runs the tour as users see it: the binary itself, in real time.

use std::process::{Command, Output};

fn dwell(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(arguments).env_remove("RUST_LOG").output().expect("the binary can be run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the tour prints UTF-8")
}

/// Returns the event lines with this symbol. They begin with time and symbol.
fn lines_with(shown: &str, symbol: char) -> Vec<&str> {
    let is_event =
        |line: &&str| line.split_whitespace().next().is_some_and(|time| time.parse::<f64>().is_ok());
    shown
        .lines()
        .filter(is_event)
        .filter(|line| line.split_whitespace().nth(1) == Some(symbol.encode_utf8(&mut [0; 4])))
        .collect()
}

#[test]
fn the_tour_shows_every_event_and_nothing_is_early_or_lost() {
    let output = dwell(&[]);
    let (shown, log) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}\n{log}");
    assert_eq!(log, "", "nothing is logged by default");
    assert!(!shown.contains('\x1b'), "colours without a terminal");
    assert!(!shown.contains('\r'), "a progress bar without a terminal");

    let expected = [
        ('→', "orders          order-1", "sent to 2 subscriptions"),
        ('→', "orders          order-1", "sent again: ignored"),
        ('→', "reminders       remind-1", "sent, due in "),
        ('◷', "reminders       remind-1", "due at "),
        ('⊘', "reminders       remind-2", "cancelled"),
        ('◷', "reminders       remind-3", "rescheduled"),
        ('✓', "reminders/inbox remind-1", "handled, "),
        ('✓', "reminders/inbox 1000", "handled, 0 early"),
        ('↻', "orders/stock    order-2", "deferred, due in "),
        ('✓', "orders/stock    order-2", "handled in run 2, "),
        ('!', "payments/card   charge-1", "run 2 failed, retry in "),
        ('✓', "payments/card   charge-1", "handled in run 3, "),
        ('!', "payments/card   refund-1", "run 1 failed"),
        ('▸', "reports/pdf     report-1", "started, and hangs"),
        ('!', "reports/pdf     report-1", "run 1 failed"),
        ('✗', "payments/card   charge-3", "given up after 3 runs"),
        ('↩', "payments/card   charge-3", "edited and replayed"),
        ('✓', "payments/card   charge-3", "handled"),
        ('■', "", "stop receiving"),
        ('✓', "parcels/packing parcel-1", "handled"),
        ('■', "", "6 of 6 subscriptions stopped"),
    ];
    for (symbol, place, what) in expected {
        let lines = lines_with(&shown, symbol);
        let is_there = lines.iter().any(|line| line.contains(place) && line.contains(what));
        assert!(is_there, "no line `{symbol} … {place} … {what}` in:\n{shown}");
    }
    for detail in [
        "the handler panicked: attempt to divide by zero",
        "the handler did not finish within 500ms",
        "error:   cannot charge -500 cents",
        r#"payload: {"order":3,"cents":-500}"#,
    ] {
        assert!(shown.contains(detail), "`{detail}` is missing in:\n{shown}");
    }
    let never = lines_with(&shown, '✓').into_iter().find(|line| line.contains("remind-2"));
    assert_eq!(never, None, "remind-2 was cancelled");
    let mails = lines_with(&shown, '✓')
        .into_iter()
        .filter(|line| line.contains("orders/mail") && line.contains("order-2"));
    assert_eq!(mails.count(), 1, "a deferral by stock does not affect mail");
    let last = shown.lines().last().unwrap_or_default();
    assert!(last.starts_with("tour: 10") && last.ends_with(" messages, 0 early, 0 lost"), "{last}");
    let too_wide = shown.lines().find(|line| line.chars().count() > 80);
    assert_eq!(too_wide, None, "a line does not fit a terminal of 80 columns");
}

#[test]
fn the_tour_runs_in_memory_and_refuses_unknown_transports() {
    let output = dwell(&["--url", "memory://"]);
    let shown = text(&output.stdout);
    assert!(output.status.success() && shown.contains("a small shop on memory://"), "{shown}");
    assert!(shown.trim_end().ends_with(" messages, 0 early, 0 lost"), "{shown}");
    let refused = dwell(&["--url", "carrier-pigeon://loft"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("memory:// and sqlite://"), "{said}");
}

#[test]
fn help_and_version_are_printed() {
    let help = dwell(&["--help"]);
    assert!(help.status.success());
    assert!(text(&help.stdout).contains("Usage: dwell"), "{}", text(&help.stdout));
    let version = dwell(&["--version"]);
    assert_eq!(text(&version.stdout), format!("dwell {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_argument_is_bad_usage() {
    for argument in ["serve", "--fast"] {
        let output = dwell(&[argument]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(argument) && said.contains("Usage: dwell"), "{said}");
        assert_eq!(text(&output.stdout), "");
    }
}
