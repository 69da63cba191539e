//! The `dwell` binary. Until there is a daemon, it shows a tour of Dwell in the terminal.
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

/// Messages now, later, again or never: on any broker, with any delay.
///
/// dwell shows a tour in the terminal: real messages through the real engine, in ten to fifteen seconds. It ends with
/// exit code 1 if any message was early or lost.
#[derive(Parser)]
#[command(
    name = "dwell",
    version,
    after_long_help = "Environment:\n  RUST_LOG   what is logged on stderr, for instance `RUST_LOG=warn`: nothing during the tour unless set, and else `info`\n  NO_COLOR   no colours, also on a terminal"
)]
struct Arguments {
    /// Where the messages of the tour lie: memory://, or sqlite:// and a path. If not given, in a SQLite file that is
    /// removed at the end
    #[arg(long)]
    url: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Make ready what is due on Redis, for consumers whose URL says `promoter=elsewhere`; until it is interrupted
    Promote {
        /// Where, such as `redis://localhost:6379`
        url: String,
    },
    /// Empty the delay topics of a broker on time, in a process of its own
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

/// What runs by itself says what happens to it.
fn service_filter() -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"))
}

/// The log would run through the picture, so it is there for those who ask for it.
fn log_if_asked() {
    if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some_and(|filter| !filter.is_empty()) {
        log(EnvFilter::from_default_env());
    }
}

fn log(filter: EnvFilter) {
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    log.with_writer(io::stderr).with_ansi(colours::are_wanted_on(&io::stderr())).init();
}
