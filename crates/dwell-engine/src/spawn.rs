//! Tasks that a virtual clock tracks, and their supervision.

use crate::backoff::Backoff;
use dwell_core::{Clock, Result};
use futures_util::FutureExt;
use std::{future::poll_fn, panic::AssertUnwindSafe, pin::pin, sync::Arc, task::Poll, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinHandle, consume_budget},
};

/// Spawns a task that the clock tracks.
pub(crate) fn spawn(clock: &dyn Clock, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(clock.track(Box::pin(task)))
}

/// Yields to other tasks. Unlike tokio's function, it wakes immediately, so that a virtual clock
/// does not overlook it.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Yields to other tasks from time to time. Call it in a loop over calls that never wait, which
/// would otherwise occupy the thread. It wakes immediately, too.
pub async fn take_turns() {
    let mut turn = pin!(consume_budget());
    poll_fn(|cx| {
        let turn = turn.as_mut().poll(cx);
        if turn.is_pending() {
            cx.waker().wake_by_ref();
        }
        turn
    })
    .await;
}

/// Completes once `stop` is true or its sender is dropped.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Returns the result of `work`, or `None` once `stop` is true.
pub(crate) async fn or_stop<T>(work: impl Future<Output = T>, stop: &mut watch::Receiver<bool>) -> Option<T> {
    tokio::select! {
        biased;
        () = stopped(stop) => None,
        done = work => Some(done),
    }
}

/// Keeps a service running until `stop`. A service that returns an error or panics is restarted
/// after a pause, which grows with repeated failures. Every restart is logged.
pub(crate) async fn supervise<F>(
    name: String,
    clock: Arc<dyn Clock>,
    mut stop: watch::Receiver<bool>,
    mut start: impl FnMut() -> F,
) where
    F: Future<Output = Result<()>> + Send,
{
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        let started = clock.elapsed();
        // Called inside, so that a panic of `start` is caught, too.
        let ended = AssertUnwindSafe(async { start().await }).catch_unwind().await;
        match ended {
            Ok(Ok(())) if *stop.borrow() || stop.has_changed().is_err() => return,
            Ok(Ok(())) => tracing::error!(service = %name, "service ended unexpectedly; restarting"),
            Ok(Err(error)) => {
                tracing::error!(service = %name, %error, "service failed; restarting")
            }
            Err(panic) => {
                tracing::error!(service = %name, panic = panic_text(&*panic), "service panicked; restarting");
            }
        }
        let now = clock.elapsed();
        if now.saturating_sub(started) > Duration::from_secs(60) {
            backoff.succeeded();
        }
        backoff.failed(now);
        if or_stop(clock.sleep(backoff.rest(now)), &mut stop).await.is_none() {
            return;
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}
