//! The `main` of a test target with `harness = false`.

use super::{CaseReport, Options, Report, Verdict, cases, run_all, worker};
use crate::Rig;
use dwell_core::{Clock, SystemClock, suggest};
use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};
use tokio::runtime::Runtime;

/// Options of this command, and options of Rust's test harness that are ignored here.
const FLAGS: [&str; 13] = [
    "--json",
    "--list",
    "--skip",
    "--exact",
    "--test-threads",
    "--nocapture",
    "--no-capture",
    "--quiet",
    "--ignored",
    "--include-ignored",
    "--show-output",
    "--format",
    "--color",
];

/// Runs the suite. The `main` of a test target with `harness = false`. The arguments are filters
/// and these options:
///
/// * `--json`: one object per line, `{"transport","case","group","result","detail"}`;
/// * `--list`: only the names;
/// * `--skip NAME`: reported as skipped;
/// * `--exact`, `--test-threads N`: as in Rust's test harness.
///
/// Without `--json`, it prints a line for each case, and a summary in the format of Rust's test
/// harness. The exit code is 1 if a case failed, and 2 if the arguments are invalid.
///
/// The whole target is then `fn main() -> ExitCode { dwell_conformance::main(MyRig::new) }`.
pub fn main<R: Rig>(factory: impl Fn() -> R) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("starting the runtime failed: {error}")),
    };
    if let Some(order) = worker::Order::from_arguments(&arguments) {
        return runtime.block_on(worker::work(factory(), order));
    }
    let command = match Command::parse(&arguments) {
        Ok(command) => command,
        Err(problem) => return usage(&problem),
    };
    if command.list {
        return list(&command.options);
    }
    let clock = SystemClock::new();
    let json = command.json;
    let report = runtime.block_on(run_all(factory, &command.options, |case| {
        print(&if json { json_line(case) } else { human_line(case) });
    }));
    if !json {
        print(&summary(&report, clock.elapsed().as_secs_f64()));
    }
    // A case that hangs may block a thread, but must not block the exit.
    runtime.shutdown_background();
    if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Default, PartialEq)]
struct Command {
    json: bool,
    list: bool,
    options: Options,
}

impl Command {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut command = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value = || {
                let value = value.clone().or_else(|| arguments.next().cloned());
                value.ok_or_else(|| format!("`{flag}` needs a value"))
            };
            match flag {
                "--json" => command.json = true,
                "--list" => command.list = true,
                "--exact" => command.options.exact = true,
                "--skip" => command.options.skip.push(value()?),
                "--test-threads" => {
                    let number = value()?;
                    let parsed =
                        number.parse().map_err(|_| format!("`{number}` is not a number of threads"))?;
                    command.options.parallel = Some(parsed);
                }
                "--format" | "--color" => drop(value()?),
                "-q" | "--quiet" | "--nocapture" | "--no-capture" | "--show-output" => {}
                "--ignored" | "--include-ignored" => {}
                other if other.starts_with('-') => {
                    let meant = suggest(other, FLAGS).map(|flag| format!(", did you mean `{flag}`?"));
                    return Err(format!("unknown flag `{other}`{}", meant.unwrap_or_default()));
                }
                filter => command.options.filters.push(filter.to_owned()),
            }
        }
        Ok(command)
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!(
        "{problem}\nusage: [FILTER]... [--json] [--list] [--skip NAME]... [--exact] [--test-threads N]"
    );
    ExitCode::from(2)
}

fn list(options: &Options) -> ExitCode {
    let names: Vec<_> =
        cases().iter().filter(|case| options.selects(case)).map(|case| case.full_name()).collect();
    names.iter().for_each(|name| print(&format!("{name}: test")));
    print(&format!("\n{} tests, 0 benchmarks", names.len()));
    ExitCode::SUCCESS
}

/// Prints a line. A closed output must not stop the cases.
fn print(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}

fn json_line(case: &CaseReport) -> String {
    serde_json::to_string(case).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn human_line(case: &CaseReport) -> String {
    let CaseReport { transport, case, group, verdict, detail } = case;
    let result = match verdict {
        Verdict::Pass if detail.is_empty() => "ok".to_owned(),
        Verdict::Pass => format!("ok ({detail})"),
        Verdict::Refused => "refused".to_owned(),
        Verdict::Fail => format!("FAILED\n    {}", detail.replace('\n', "\n    ")),
        Verdict::Skipped => format!("ignored, {detail}"),
    };
    format!("test {transport} {group}::{case} ... {result}")
}

/// Summary in the format of Rust's test harness, with the number of refused cases.
fn summary(report: &Report, seconds: f64) -> String {
    let count = |verdict| report.count(verdict);
    format!(
        "\ntest result: {}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out; {} refused; \
         finished in {seconds:.2}s\n",
        if report.is_ok() { "ok" } else { "FAILED" },
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Skipped),
        report.filtered_out,
        count(Verdict::Refused),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Group;

    fn parse(arguments: &[&str]) -> Result<Command, String> {
        Command::parse(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_and_filters_may_come_in_any_order() {
        let command = parse(&["ack", "--skip", "restart", "--json", "--test-threads=3", "release"]).unwrap();
        assert!(command.json && !command.list);
        assert_eq!(command.options.filters, ["ack", "release"]);
        assert_eq!((command.options.skip, command.options.parallel), (vec!["restart".to_owned()], Some(3)));
    }

    #[test]
    fn flags_of_the_rust_harness_are_accepted_and_others_are_not() {
        assert!(parse(&["--nocapture", "-q", "--format", "terse", "--include-ignored"]).is_ok());
        assert!(parse(&["--jsn"]).unwrap_err().contains("did you mean `--json`?"));
        assert!(parse(&["--skip"]).unwrap_err().contains("needs a value"));
        assert!(parse(&["--test-threads", "many"]).unwrap_err().contains("`many`"));
    }

    fn report(verdict: Verdict) -> CaseReport {
        let (transport, case) = ("log".to_owned(), "ack removes".to_owned());
        CaseReport { transport, case, group: Group::Settling, verdict, detail: "why".to_owned() }
    }

    #[test]
    fn a_result_is_one_json_object_with_the_documented_fields() {
        assert_eq!(
            json_line(&report(Verdict::Refused)),
            r#"{"transport":"log","case":"ack removes","group":"Settling","result":"refused","detail":"why"}"#
        );
    }

    #[test]
    fn the_summary_has_the_format_of_the_rust_harness_and_counts_refused_separately() {
        let cases = [Verdict::Pass, Verdict::Pass, Verdict::Refused, Verdict::Skipped].map(report).to_vec();
        let text = summary(&Report { cases: cases.clone(), filtered_out: 5 }, 0.5);
        let expected = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 5 filtered out; 1 refused; \
                        finished in 0.50s";
        assert_eq!(text.trim(), expected);
        let cases = [cases, vec![report(Verdict::Fail)]].concat();
        assert!(summary(&Report { cases, filtered_out: 0 }, 0.5).contains("FAILED. 2 passed; 1 failed"));
    }
}
