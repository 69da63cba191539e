//! The wish that we end.

/// Until somebody presses Ctrl-C or asks the process to end.
#[cfg(unix)]
pub(crate) async fn asked_to_end() {
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

/// Until somebody presses Ctrl-C.
#[cfg(not(unix))]
pub(crate) async fn asked_to_end() {
    let _ = tokio::signal::ctrl_c().await;
}
