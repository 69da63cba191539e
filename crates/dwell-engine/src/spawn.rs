//! Tasks that a virtual clock knows about, and what stops them.

use crate::backoff::Backoff;
use dwell_core::{Clock, Result};
use futures_util::FutureExt;
use std::{future::poll_fn, panic::AssertUnwindSafe, pin::pin, sync::Arc, task::Poll, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinHandle, consume_budget},
};

/// Spawns a task whose wake-ups the clock counts.
pub(crate) fn spawn(clock: &dyn Clock, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(clock.track(Box::pin(task)))
}

/// Lets other tasks run. Unlike tokio's own, it wakes at once, so that a virtual clock does not overlook it.
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

/// Lets other tasks run now and then: whoever calls what never has to wait, over and over, would keep a thread to itself.
/// It wakes at once, too.
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

/// Completes once `stop` says so, or once nobody is left who could say it.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The outcome of `work`, or `None` once `stop` says so; at once if it has already.
pub(crate) async fn or_stop<T>(work: impl Future<Output = T>, stop: &mut watch::Receiver<bool>) -> Option<T> {
    tokio::select! {
        biased;
        () = stopped(stop) => None,
        done = work => Some(done),
    }
}

/// Keeps a service running until it is stopped: one that ends with an error or panics is started again, after a pause
/// that grows while it keeps failing. A scheduler that dies must never die in silence.
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
        // Called within, so that a start that panics is seen, too.
        let ended = AssertUnwindSafe(async { start().await }).catch_unwind().await;
        match ended {
            Ok(Ok(())) if *stop.borrow() || stop.has_changed().is_err() => return,
            Ok(Ok(())) => tracing::error!(service = %name, "ended without being told to: starting it again"),
            Ok(Err(error)) => {
                tracing::error!(service = %name, %error, "stopped with an error: starting it again")
            }
            Err(panic) => {
                tracing::error!(service = %name, panic = panic_text(&*panic), "panicked: starting it again");
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

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
