//! One run of a handler, with its timeout.

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

/// A delivery and its place in the table of slots.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) slot: usize,
    pub(super) delivery: Delivery,
}

/// A handler that has to wait. One that is done at once never comes to be here, nor pays for a timer.
pub(super) struct Run {
    pub(super) held: Option<Held>,
    /// `None` once it has been dropped.
    pub(super) handler: Option<BoxFuture<'static, Verdict>>,
    pub(super) started: Duration,
    pub(super) late: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) timer: BoxFuture<'static, ()>,
}

/// A handler that is done, or was given up.
pub(super) struct Finished {
    pub(super) held: Held,
    /// When it was started, in elapsed time, and how late that was; `None` if it never ran.
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
                // A panic of its destructor is logged; it does not change the outcome.
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
    /// Drops the handler. Returns the text of a panic in its destructor, which must not reach the other runs.
    fn drop_handler(&mut self) -> Option<String> {
        let handler = self.handler.take()?;
        let panic = drop_caught(handler)?;
        if let Some(Held { delivery, .. }) = &self.held {
            let message = &delivery.message;
            tracing::error!(
                id = %message.id, kind = %message.kind, attempt = message.attempts.handled.saturating_add(1), panic,
                "the handler panicked while it was dropped"
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
