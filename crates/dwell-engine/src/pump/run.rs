//! One run of a handler, with its timeout.

use crate::{
    planted::{Bug, planted},
    rules::Verdict,
};
use dwell_core::{BoxFuture, Clock, Delivery, duration::format_duration};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

/// A delivery and its place in the table of slots.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) slot: usize,
    pub(super) delivery: Delivery,
}

/// A handler at work. The timer is set only once the handler has had to wait: one that is done at once never pays.
pub(super) struct Run {
    pub(super) held: Option<Held>,
    pub(super) handler: BoxFuture<'static, Verdict>,
    pub(super) started: Duration,
    pub(super) late: Option<Duration>,
    pub(super) timeout: Duration,
    pub(super) timer: Option<BoxFuture<'static, ()>>,
    pub(super) clock: Arc<dyn Clock>,
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
        let (verdict, timed_out) = match this.handler.as_mut().poll(cx) {
            Poll::Ready(verdict) => (verdict, false),
            Poll::Pending => {
                let timer = this.timer.get_or_insert_with(|| this.clock.sleep(this.timeout));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let text = format!("the handler did not finish within {}", format_duration(this.timeout));
                let verdict =
                    if planted(Bug::TimeoutAcked) { Verdict::ACK } else { Verdict::Fail(text.into()) };
                (verdict, true)
            }
        };
        let held = this.held.take().expect("a run is not polled after it has finished");
        Poll::Ready(Finished { held, ran: Some((this.started, this.late)), verdict, timed_out })
    }
}
