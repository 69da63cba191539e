//! The `main` of a test target with `harness = false`.

use super::{
    report::Report,
    run::{Options, run},
    worker,
};
use crate::Rig;
use dwell_core::{BoxError, Random, SeededRandom, suggest};
use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};
use tokio::runtime::Runtime;

/// Number of kills that fits into a run of all tests.
const FEW_KILLS: usize = 5;

/// Kills workers under load. The `main` of a test target with `harness = false`.
///
/// * `--kills N`: number of kills; the default is small;
/// * `--seed S`: seed of the plan, as an earlier run printed it;
/// * `--json`: print the [`Report`] as one JSON object in the last line.
///
/// Earlier lines show the progress. The exit code is 1 if a promise was broken, and 2 if the
/// arguments are invalid. The rig must use real time, and other processes must reach its server:
/// see [`Abilities::processes`](crate::Abilities::processes).
///
/// The whole target is then `fn main() -> ExitCode { dwell_conformance::kills::main(MyRig::new) }`.
pub fn main<R: Rig>(factory: impl Fn() -> R) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("starting the runtime failed: {error}")),
    };
    if let Some(order) = worker::Order::from_arguments(&arguments) {
        return runtime.block_on(worker::work(factory(), order));
    }
    report(|options, tell| {
        let rig = factory();
        tell(&format!("{}: seed {}", rig.name(), options.seed));
        let (report, kept) = runtime.block_on(run(&rig, options, tell))?;
        if let Some(directory) = kept {
            tell(&format!("the journals are in {}", directory.display()));
        }
        Ok(report)
    })
}

/// Does the same for other kinds of kills: passes the options to `run`, with a function that prints
/// the progress.
pub fn report(run: impl FnOnce(Options, &mut dyn FnMut(&str)) -> Result<Report, BoxError>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, json) = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(problem) => return usage(&problem),
    };
    match run(options, &mut print) {
        Ok(report) => {
            print(&shown(&report, json));
            if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("the run failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn shown(report: &Report, json: bool) -> String {
    if !json {
        return report.to_string();
    }
    serde_json::to_string(report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn parse(arguments: &[String]) -> Result<(Options, bool), String> {
    let mut options = Options { kills: FEW_KILLS, seed: SeededRandom::from_system().next() >> 32 };
    let mut json = false;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let mut number = || {
            let text = value.clone().or_else(|| arguments.next().cloned());
            let text = text.ok_or_else(|| format!("`{flag}` needs a value"))?;
            text.parse::<u64>().map_err(|_| format!("`{flag}` takes a number, not `{text}`"))
        };
        match flag {
            "--json" => json = true,
            "--kills" => options.kills = number()? as usize,
            "--seed" => options.seed = number()?,
            // Options that `cargo test` passes to every target.
            "--nocapture" | "--no-capture" | "-q" | "--quiet" | "--show-output" => {}
            other => {
                let meant = suggest(other, ["--kills", "--seed", "--json"]);
                let meant = meant.map(|flag| format!(", did you mean `{flag}`?"));
                return Err(format!("unknown argument `{other}`{}", meant.unwrap_or_default()));
            }
        }
    }
    Ok((options, json))
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\nusage: [--kills N] [--seed S] [--json]");
    ExitCode::from(2)
}

/// Prints a line. Ignores a closed output.
fn print(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<(Options, bool), String> {
        parse(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn kills_and_seed_are_parsed_in_both_forms() {
        assert_eq!(
            parsed(&["--kills", "200", "--seed=7", "--json"]),
            Ok((Options { kills: 200, seed: 7 }, true))
        );
        assert_eq!(parsed(&["--nocapture"]).unwrap().0.kills, FEW_KILLS);
    }

    #[test]
    fn invalid_arguments_are_refused_by_name() {
        assert!(parsed(&["--kill", "3"]).unwrap_err().contains("did you mean `--kills`?"));
        assert!(parsed(&["--kills", "many"]).unwrap_err().contains("`many`"));
        assert!(parsed(&["--kills"]).unwrap_err().contains("needs a value"));
    }
}
