//! The `dwell` binary: a tour of Dwell in the terminal, and commands that run parts of a transport
//! in a separate process.
#![forbid(unsafe_code)]

mod colours;
mod ending;
mod failure;
mod promote;
#[cfg_attr(not(feature = "kafka"), path = "relay/absent.rs")]
mod relay;
mod tour;

use clap::{Parser, Subcommand};
use std::{io, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// Sends, delays and retries messages on any broker.
///
/// Without a command, dwell shows a tour in the terminal: it sends real messages through the
/// engine, in ten to fifteen seconds. It ends with exit code 1 if any message was early or lost.
#[derive(Parser)]
#[command(
    name = "dwell",
    version,
    after_long_help = "Environment:\n  RUST_LOG   log filter for stderr, such as `RUST_LOG=warn`; by default, commands log at `info` and the tour logs nothing\n  NO_COLOR   disables colours on a terminal"
)]
struct Arguments {
    /// Broker of the tour: `memory://`, or `sqlite://` and a path [default: a temporary SQLite
    /// file]
    #[arg(long)]
    url: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Make due messages on Redis ready for consumers whose URL has `promoter=elsewhere`, until
    /// interrupted
    Promote {
        /// URL of the server, such as `redis://localhost:6379`
        url: String,
    },
    /// Run a relay for the delay topics of a broker
    #[command(subcommand)]
    Relay(relay::Command),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        None => {
            log_if_asked();
            tour::run(arguments.url).await
        }
        Some(Command::Promote { url }) => {
            log(service_filter());
            promote::run(&url).await
        }
        Some(Command::Relay(command)) => {
            log(service_filter());
            relay::run(command).await
        }
    }
}

/// Returns the log filter of commands other than the tour.
fn service_filter() -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Logs only if `RUST_LOG` is set, because the log would garble the output of the tour.
fn log_if_asked() {
    if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some_and(|filter| !filter.is_empty()) {
        log(EnvFilter::from_default_env());
    }
}

fn log(filter: EnvFilter) {
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    log.with_writer(io::stderr).with_ansi(colours::are_wanted_on(&io::stderr())).init();
}
