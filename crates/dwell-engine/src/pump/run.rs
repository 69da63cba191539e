//! A run of a handler, with its timeout.

use super::executor::{drop_caught, poll_run};
use crate::{
    planted::{Bug, planted},
    rules::Verdict,
};
use dwell_core::{BoxFuture, Delivery, duration::format_duration};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

/// A delivery and its slot.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) slot: usize,
    pub(super) delivery: Delivery,
}

/// A run that waits. A handler that finishes immediately creates none, and needs no timer.
pub(super) struct Run {
    pub(super) held: Option<Held>,
    /// `None` after the drop.
    pub(super) handler: Option<BoxFuture<'static, Verdict>>,
    pub(super) started: Duration,
    pub(super) late: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) timer: BoxFuture<'static, ()>,
}

/// A run that has ended or timed out.
pub(super) struct Finished {
    pub(super) held: Held,
    /// Start in elapsed time, and lateness. `None` if the handler did not run.
    pub(super) ran: Option<(Duration, Option<Duration>)>,
    pub(super) verdict: Verdict,
    pub(super) timed_out: bool,
}

impl Future for Run {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let this = &mut *self;
        let handler = this.handler.as_mut().expect("a run is not polled after it has finished");
        let (verdict, timed_out) = match poll_run(handler, cx) {
            Poll::Ready(verdict) => {
                // A panic of the destructor is logged and does not change the outcome.
                this.drop_handler();
                (verdict, false)
            }
            Poll::Pending => {
                if this.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let mut text = format!("the handler did not finish within {}", format_duration(this.timeout));
                if let Some(panic) = this.drop_handler() {
                    text = format!("{text}, and panicked while it was dropped: {panic}");
                }
                let verdict =
                    if planted(Bug::TimeoutAcked) { Verdict::ACK } else { Verdict::Fail(text.into()) };
                (verdict, true)
            }
        };
        let held = this.held.take().expect("a run is not polled after it has finished");
        Poll::Ready(Finished { held, ran: Some((this.started, this.late)), verdict, timed_out })
    }
}

impl Run {
    /// Drops the handler. Returns the message of a panic in its destructor, which must not reach
    /// other runs.
    fn drop_handler(&mut self) -> Option<String> {
        let handler = self.handler.take()?;
        let panic = drop_caught(handler)?;
        if let Some(Held { delivery, .. }) = &self.held {
            let message = &delivery.message;
            tracing::error!(
                id = %message.id, kind = %message.kind, attempt = message.attempts.handled.saturating_add(1), panic,
                "handler panicked while it was dropped"
            );
        }
        Some(panic)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.drop_handler();
    }
}
