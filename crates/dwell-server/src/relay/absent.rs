//! `dwell relay` in a program that was built without a broker that needs one.

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Not in this program, which was built without the feature `kafka`
    Kafka {
        /// Whatever it is told, it says the same.
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
}

pub(crate) async fn run(_: Command) -> ExitCode {
    eprintln!(
        "error: this program was built without Kafka: build `dwell` with the feature `kafka`, as by `cargo install --path \
         crates/dwell-server --features kafka`"
    );
    ExitCode::from(2)
}
