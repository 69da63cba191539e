//! `cargo xtask simulate`: the deterministic simulation, in a release build.

use std::process::ExitCode;

use clap::Args;

use crate::process::{Ending, Program};

/// Run the deterministic simulation.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of seeds to run
    #[arg(long, value_name = "N")]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    Ok(match program(options.seeds, options.from).pass_through()? {
        Ending::Code(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ending::Signal | Ending::TimedOut(_) => ExitCode::FAILURE,
    })
}

/// Runs `seeds` seeds, the first one being `from`.
pub(crate) fn program(seeds: u64, from: u64) -> Program {
    let (seeds, from) = (seeds.to_string(), from.to_string());
    Program::cargo([
        "run",
        "--release",
        "--package",
        "dwell-simulation",
        "--",
        "--seeds",
        &seeds,
        "--from",
        &from,
    ])
}
