//! The wish that we end.

use std::{io, process::exit};

/// What a shell says of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Until somebody presses Ctrl-C or asks the process to end. Whoever asks again does not want to wait for what is being
/// finished: it ends at once.
pub(crate) async fn asked_to_end() {
    let mut wishes = match Wishes::listen() {
        Ok(wishes) => wishes,
        Err(error) => {
            tracing::warn!(%error, "this process cannot be asked to end in good order");
            return std::future::pending().await;
        }
    };
    wishes.next().await;
    // Heard from now on, whoever asks: nobody can ask between the two.
    tracing::info!("finishing what is on its way; asked once more, it ends at once");
    tokio::spawn(async move {
        wishes.next().await;
        eprintln!("ending at once: what was not confirmed yet comes again");
        exit(INTERRUPTED);
    });
}

/// All who ask, in turn.
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
