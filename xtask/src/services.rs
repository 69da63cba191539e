//! `cargo xtask services`: private servers on free ports of the loopback interface, as the tests use them.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::process::{Ending, Program};

/// Start private servers.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Install what is missing, start the servers, print their addresses, and end them with this command
    Up {
        /// Which: `redis`, `redis-cluster`; both if none is named
        names: Vec<String>,
    },
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    let Command::Up { names } = &options.command;
    let program = ["run", "--quiet", "--package", "dwell-conformance", "--bin", "services", "--"];
    let program = Program::cargo(program.into_iter().chain(names.iter().map(String::as_str)));
    Ok(match program.pass_through()? {
        Ending::Code(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
