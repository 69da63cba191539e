//! Signals that stop the process.

use std::{io, process::exit};

/// Exit code after an interrupt, as shells report it.
const INTERRUPTED: i32 = 130;

/// Completes on the first Ctrl-C or termination signal. A second signal ends the process at once,
/// without waiting for work in flight.
pub(crate) async fn asked_to_end() {
    let mut wishes = match Wishes::listen() {
        Ok(wishes) => wishes,
        Err(error) => {
            tracing::warn!(%error, "signal handler unavailable; this process cannot shut down gracefully");
            return std::future::pending().await;
        }
    };
    wishes.next().await;
    // The signals are registered already, so none is missed between the first and the second.
    tracing::info!("shutting down after work in flight; a second signal ends the process at once");
    tokio::spawn(async move {
        wishes.next().await;
        eprintln!("ending at once; unconfirmed messages will be processed again");
        exit(INTERRUPTED);
    });
}

/// Streams of the signals.
#[cfg(unix)]
struct Wishes {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Wishes {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(windows)]
struct Wishes(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Wishes {
    fn listen() -> io::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    async fn next(&mut self) {
        let _ = self.0.recv().await;
    }
}
