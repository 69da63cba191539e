//! `dwell relay` in a program that was built without Kafka.

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Not available: this program was built without the feature `kafka`
    Kafka {
        /// Ignored.
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
}

pub(crate) async fn run(_: Command) -> ExitCode {
    eprintln!(
        "error: this program was built without Kafka: build `dwell` with the feature `kafka`, for example with `cargo install --path \
         crates/dwell-server --features kafka`"
    );
    ExitCode::from(2)
}
