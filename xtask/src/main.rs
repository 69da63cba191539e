//! The repository's own commands: `cargo xtask …`.
//!
//! They build and run the other packages through cargo and read their output, and depend on none of
//! them. A crate that does not compile is then a failed step, and the command still starts.

#![forbid(unsafe_code)]

mod artifacts;
mod bench;
mod clock;
mod columns;
mod conformance;
mod docs;
mod faults;
mod licences;
mod number;
mod output;
mod process;
mod services;
mod simulate;
mod table;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// The repository's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Command {
    /// Run everything: format, lints, tests, conformance, simulation, docs
    Test(test::Options),
    /// Run the conformance suite and show the result of each case on each transport
    Conformance(conformance::Options),
    /// Run the benchmarks, each beside its baseline
    Bench(bench::Options),
    /// Run the deterministic simulation; a failing seed is printed and replays exactly
    Simulate(simulate::Options),
    /// Kill workers under load on real stores, and account for every message
    Faults(faults::Options),
    /// Start and stop private servers for tests, and print their URLs
    Services(services::Options),
    /// Write the generated parts of the Markdown files, and check their links
    Docs(docs::Options),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Test(options) => test::run(&options),
        Command::Conformance(options) => conformance::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Faults(options) => faults::run(&options),
        Command::Services(options) => services::run(&options),
        Command::Docs(options) => docs::run(&options),
    };
    ended.unwrap_or_else(|problem| {
        eprintln!("error: {problem}");
        ExitCode::FAILURE
    })
}
