//! `cargo xtask bench`: runs the benchmarks. Each measures Dwell and a baseline in the same run.

mod figures;

use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::output::Screen;
use crate::process::{Output, Program, Seen, Stream};
use crate::workspace::Workspace;

/// A named set of benchmark targets. Each takes `--json` and `--smoke`.
struct Suite {
    name: &'static str,
    targets: &'static [(&'static str, &'static str)],
}

const SUITES: &[Suite] = &[
    Suite { name: "core", targets: &[("dwell-core", "wheel"), ("dwell-engine", "engine")] },
    Suite { name: "bus", targets: &[("dwell-bench", "bus")] },
    Suite { name: "sqlite", targets: &[("dwell-sqlite", "sqlite"), ("dwell-bench", "jobs")] },
    Suite { name: "redis", targets: &[("dwell-redis", "redis"), ("dwell-bench", "redis-jobs")] },
    Suite { name: "kafka", targets: &[("dwell-kafka", "kafka")] },
];

/// Run the benchmarks.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Names of the benchmarks; all if none is named
    #[arg(value_delimiter = ',', value_parser = PossibleValuesParser::new(SUITES.iter().map(|suite| suite.name)))]
    names: Vec<String>,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Only check that they run: few iterations, meaningless figures
    #[arg(long)]
    smoke: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let workspace = Workspace::members()?;
    let screen = Screen::new();
    let mut lines = Vec::new();
    let mut problems = Vec::new();
    for program in programs(&workspace, &options.names, options.smoke)? {
        let mut shown = String::new();
        let output = program.sharing_stderr().run(&mut |seen| {
            if let Seen::Line(Stream::Stdout, line) = seen {
                shown = line.to_owned();
                if options.json {
                    screen.print(line);
                }
            }
            if !options.json && !shown.is_empty() {
                screen.progress(&shown);
            }
        })?;
        screen.clear();
        problems.extend(judge(&output));
        lines.extend(output.stdout);
    }

    if !options.json {
        screen.print(&figures::render(&lines, screen.colours()));
    }
    for problem in &problems {
        eprintln!("error: {problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Package and name of every benchmark.
pub(crate) fn targets() -> impl Iterator<Item = (&'static str, &'static str)> {
    SUITES.iter().flat_map(|suite| suite.targets).copied()
}

/// The benchmark programs of the named suites, or of all where none is named.
fn programs(workspace: &Workspace, names: &[String], smoke: bool) -> Result<Vec<Program>, String> {
    let is_named = |suite: &&Suite| names.is_empty() || names.iter().any(|name| name == suite.name);
    let mut programs = Vec::new();
    for (package, target) in SUITES.iter().filter(is_named).flat_map(|suite| suite.targets) {
        workspace.require(package, "bench", target)?;
        let mut arguments = vec!["bench", "--package", package, "--bench", target, "--", "--json"];
        arguments.extend(smoke.then_some("--smoke"));
        programs.push(Program::cargo(arguments));
    }
    Ok(programs)
}

/// The problems of a run: it failed, measured nothing, or saw an early message.
pub(crate) fn judge(output: &Output) -> Vec<String> {
    if !output.ending.is_success() {
        return vec![output.problem()];
    }
    let figures: Vec<_> = output.stdout.iter().filter_map(|line| figures::parse(line)).collect();
    if figures.is_empty() {
        return vec![format!("`{}` printed no figures", output.shown)];
    }
    figures.iter().filter_map(figures::early).collect()
}
