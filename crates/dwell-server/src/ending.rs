//! The wish that we end.

use std::process::exit;

/// What a shell says of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Until somebody presses Ctrl-C or asks the process to end. Whoever asks again does not want to wait for what is being
/// finished: it ends at once.
pub(crate) async fn asked_to_end() {
    asked().await;
    tokio::spawn(async {
        asked().await;
        eprintln!("ending at once: what was not confirmed yet comes again");
        exit(INTERRUPTED);
    });
}

#[cfg(unix)]
async fn asked() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut ended) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = ended.recv() => {}
    }
}

#[cfg(not(unix))]
async fn asked() {
    let _ = tokio::signal::ctrl_c().await;
}
