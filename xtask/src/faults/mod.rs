//! `cargo xtask faults`: kills workers under load on real stores, and accounts for every message.

mod figures;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::artifacts::TestBinary;
use crate::columns::{self, Column, FAULTS, HANGS};
use crate::conformance;
use crate::number::grouped;
use crate::output::{Screen, Style};
use crate::process::{Output, Program, Seen, Stream};
use crate::workspace::Workspace;

pub(crate) use figures::Figures;

/// Kill workers under load, and account for every message.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Names of the transports; all if none is named
    #[arg(value_delimiter = ',', value_parser = PossibleValuesParser::new(columns::names_of(FAULTS)))]
    transports: Vec<String>,
    /// Number of workers to kill on each transport
    #[arg(long, value_name = "N", required_unless_present = "hangs", default_value_t = 0)]
    kills: u64,
    /// How often to hang the broker instead, for 11 to 40 s each time; on kafka alone
    #[arg(long, value_name = "N", conflicts_with_all = ["kills", "json"])]
    hangs: Option<u64>,
    /// Seed of an earlier run, which repeats its plan
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Print one JSON object for each transport instead of the table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let workspace = Workspace::members()?;
    let build = &mut |program: Program| program.sharing_stderr().run(&mut |_| ());
    if let Some(hangs) = options.hangs {
        return hang(&workspace, options, hangs, build);
    }
    let chosen = columns::named(FAULTS, &options.transports);
    let binaries = conformance::build(&workspace, &chosen, build)?;

    let screen = Screen::new();
    let mut results = Vec::new();
    let mut problems = Vec::new();
    for (transport, binary) in chosen.iter().zip(&binaries) {
        let mut last = String::new();
        let output = program(binary, options.kills, options.seed).sharing_stderr().run(&mut |seen| {
            if let Seen::Line(Stream::Stdout, line) = seen {
                if !is_object(line) {
                    last = line.to_owned();
                } else if options.json {
                    screen.print(line);
                }
            }
            if !options.json {
                screen.progress(&last);
            }
        })?;
        screen.clear();
        match judge(transport, &output) {
            Ok(figures) => results.push(figures),
            Err(problem) => problems.push(problem),
        }
    }

    if !options.json && !results.is_empty() {
        screen.print(&figures::render(&results, screen.colours()));
    }
    for problem in &problems {
        eprintln!("{}", screen.paint(Style::Bad, problem));
    }
    let is_ok = problems.is_empty() && results.iter().all(Figures::is_ok);
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Hangs the brokers of these transports, and prints the output of their tests.
fn hang(
    workspace: &Workspace,
    options: &Options,
    hangs: u64,
    build: &mut dyn FnMut(Program) -> Result<Output, String>,
) -> Result<ExitCode, String> {
    let chosen = columns::named(HANGS, &options.transports);
    let unknown = options.transports.iter().find(|name| HANGS.iter().all(|column| column.name != **name));
    if let Some(name) = unknown {
        return Err(format!("no broker of `{name}` is hung: `--hangs` is for kafka"));
    }
    let (screen, mut is_ok) = (Screen::new(), true);
    for binary in conformance::build(workspace, &chosen, build)? {
        let mut arguments = vec![format!("--hangs={hangs}")];
        arguments.extend(options.seed.map(|seed| format!("--seed={seed}")));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        // Traffic precedes each hang, and every level has 30 s to resume.
        let limit = Duration::from_mins(10) + Duration::from_secs(hangs.saturating_mul(90));
        let output = binary.program(&arguments).limit(limit).sharing_stderr().run(&mut |seen| {
            if let Seen::Line(Stream::Stdout, line) = seen {
                screen.print(line);
            }
        })?;
        is_ok &= output.ending.is_success();
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the program that kills this number of workers on one transport.
pub(crate) fn program(binary: &TestBinary, kills: u64, seed: Option<u64>) -> Program {
    let mut arguments = vec!["--json".to_owned(), format!("--kills={kills}")];
    arguments.extend(seed.map(|seed| format!("--seed={seed}")));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // Minutes for the remaining messages, and seconds for each kill.
    binary.program(&arguments).limit(Duration::from_mins(10) + Duration::from_secs(kills.saturating_mul(5)))
}

/// Reads the output of a transport's test. Output without a result is an error.
pub(crate) fn judge(transport: &Column, output: &Output) -> Result<Figures, String> {
    let line = output.stdout.iter().rev().find(|line| is_object(line));
    let Some(line) = line else {
        return Err(format!("{}: {}", transport.name, output.problem()));
    };
    let kept = output.stdout.iter().find(|line| line.starts_with("the journals are in "));
    let figures =
        Figures::parse(line, kept.cloned()).map_err(|problem| format!("{}: {problem}", transport.name))?;
    if !output.ending.is_success() && figures.is_ok() {
        return Err(format!("{}: {}", transport.name, output.problem()));
    }
    Ok(figures)
}

/// A line that is not an object reports progress.
fn is_object(line: &str) -> bool {
    line.starts_with('{')
}

/// One line for one transport.
pub(crate) fn summary(figures: &Figures) -> String {
    let of = |name: &str| grouped(figures.count(name) as f64);
    format!(
        "{}: {} kills, {} sent, {} copies handled, {} duplicates, {} of them not explained",
        figures.transport,
        of("kills"),
        of("sent"),
        of("handled"),
        of("duplicates"),
        of("unexplained")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ending;

    fn judged(code: i32, lines: &[&str]) -> Result<Figures, String> {
        let stdout = lines.iter().map(|line| (*line).to_owned()).collect();
        let output = Output { ending: Ending::Code(code), stdout, tail: vec![], shown: "faults".into() };
        judge(&FAULTS[0], &output)
    }

    #[test]
    fn what_was_found_is_a_result_and_a_run_that_was_not_made_is_a_problem() {
        let line = figures::tests::line("lost", 1);
        let figures = judged(1, &["sqlite: seed 7", "the journals are in /tmp/x", &line]).unwrap();
        assert!(!figures.is_ok());
        assert!(figures.problem().ends_with("the journals are in /tmp/x"), "{}", figures.problem());
        assert!(judged(1, &["sqlite: seed 7"]).unwrap_err().contains("ended with exit code 1"));
        assert!(judged(101, &[&figures::tests::line("lost", 0)]).is_err());
        assert!(judged(0, &["{}"]).unwrap_err().contains("without"));
    }
}
