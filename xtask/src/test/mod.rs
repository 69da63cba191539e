//! `cargo xtask test`: runs everything, step by step, and ends with the counts.

mod job;
mod outcome;
mod report;
mod selection;
mod servers;
mod steps;
mod tally;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::clock;
use crate::number::seconds;
use crate::output::{Screen, Style};
use crate::services;
use crate::workspace::Workspace;

use job::Job;
use outcome::Outcome;
use report::Finished;
use selection::Selection;
use servers::SERVERS;
use steps::{STEPS, Step};

/// Run everything: format, lints, tests, conformance, simulation, docs.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Install what the tests need beforehand, from the distribution
    #[arg(long)]
    install: bool,
    /// Build and install cargo-deny if it is missing
    #[arg(long)]
    install_deny: bool,
    /// Leave out slow steps and servers: 100 simulation seeds, no kills, no benchmarks
    #[arg(long)]
    quick: bool,
    /// Run only these steps or transports
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(selection::names()))]
    only: Vec<String>,
    /// Leave these steps or transports out
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(selection::names()))]
    skip: Vec<String>,
}

impl Options {
    fn selection(&self) -> Selection {
        Selection::new(&self.only, &self.skip)
    }

    /// The servers that tests run on, and those left out.
    fn servers(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        SERVERS.into_iter().partition(|server| !self.quick && self.selection().has_server(server))
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let screen = Screen::new();
    let workspace = Workspace::members()?;
    let needs = [&["build"], &*options.servers().0].concat();
    services::prepare(&needs, options.install, &workspace.target_directory)?;
    let mut finished = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        let title = format!("[{:>2}/{}] {}", index + 1, STEPS.len(), step.name);
        finished.push(run_step(step, &title, options, &workspace, &screen));
    }

    screen.print(&format!("\n{}", report::render(&finished, screen.colours())));
    let failed = finished.iter().any(|step| step.outcome.tally.failed > 0);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs one step and prints its result. Later steps run although one has failed.
fn run_step(step: &Step, title: &str, options: &Options, workspace: &Workspace, screen: &Screen) -> Finished {
    if let Some(reason) = reason_to_leave_out(step, options) {
        screen.print(&format!("{title}: {}, {reason}", screen.paint(Style::Caution, "skipped")));
        return Finished { name: step.name, outcome: Outcome::skipped(reason), took: Duration::ZERO };
    }
    if !screen.is_terminal() {
        screen.print(&format!("{title} …"));
    }
    let started = clock::now();
    let (outcome, log) = match Job::new(workspace, options, screen, title, step.name) {
        Ok(mut job) => {
            let outcome = (step.run)(&mut job).unwrap_or_else(Outcome::failed);
            outcome.notes.iter().chain(&outcome.problems).for_each(|text| job.write(text));
            (outcome, Some(job.log_path().to_path_buf()))
        }
        Err(problem) => (Outcome::failed(problem), None),
    };

    let took = started.elapsed();
    let (word, style) = outcome.word();
    let word = screen.paint(style, word);
    screen.print(&format!("{title}: {word}, {}, {} s", outcome.tally.short(), seconds(took)));
    for text in outcome.notes.iter().chain(&outcome.problems) {
        screen.print(&format!("        {}", text.replace('\n', "\n        ")));
    }
    if let Some(log) = log.filter(|_| outcome.tally.failed > 0) {
        screen.print(&format!("        the whole log: {}", log.display()));
    }
    Finished { name: step.name, outcome, took }
}

fn reason_to_leave_out(step: &Step, options: &Options) -> Option<&'static str> {
    if !options.selection().has_step(step.name) {
        Some("left out by name")
    } else if options.quick && step.is_long {
        Some("left out by --quick")
    } else {
        None
    }
}
