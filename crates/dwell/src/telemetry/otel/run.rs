//! The span of a run: where it belongs, what it says, how it ended.

use super::{describe, describe_message, headers, trace_of};
use crate::{Cx, Failure};
use dwell_core::BoxFuture;
use dwell_engine::Verdict;
use opentelemetry::trace::{Status, TraceContextExt};
use std::time::Duration;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// `messaging.operation.type` of a run.
pub(in crate::telemetry) const PROCESS: &str = "process";
/// A message that was due this long after it was sent was meant to wait. Less may be clocks that differ.
const HELD_BACK: Duration = Duration::from_secs(1);

/// Puts the span of a run into its trace, before anything happens in it.
///
/// What is delivered at once and for the first time is a part of what its sender does: a child. What was delayed, deferred
/// or retried happens long after, maybe days: a trace of its own, with a link to the sender's.
pub(in crate::telemetry) fn begin_run(span: &Span, cx: &Cx) {
    let sender = headers::extract(cx.headers());
    let follows = follows_at_once(cx);
    let parent = if follows { sender.clone() } else { headers::extract_baggage(cx.headers()) };
    if span.set_parent(parent).is_err() {
        // Nobody traces.
        return;
    }
    if !follows {
        span.add_link(sender.span().span_context().clone());
    }
    describe(span, PROCESS);
    describe_message(span, cx.topic(), cx.message());
    span.set_attribute("messaging.destination.subscription.name", cx.subscription().to_owned());
    go_on(span, cx);
}

/// What is sent in this context belongs to the trace of this span.
pub(in crate::telemetry) fn go_on(span: &Span, cx: &Cx) {
    if let Some(trace) = trace_of(span) {
        cx.set_trace(trace);
    }
}

fn follows_at_once(cx: &Cx) -> bool {
    let held_back = match (cx.message().sent_at, cx.due()) {
        (Some(sent), Some(due)) => due.since(sent) >= HELD_BACK,
        _ => false,
    };
    cx.attempt() == 1 && cx.deliveries().is_none_or(|deliveries| deliveries <= 1) && !held_back
}

/// Runs, and writes into the span how it ended; also if it is dropped before.
pub(in crate::telemetry) fn until_end(
    span: Span,
    run: BoxFuture<'static, Verdict>,
) -> BoxFuture<'static, Verdict> {
    let mut ending = Ending { span, is_known: false };
    Box::pin(async move {
        let verdict = run.await;
        ending.is_known = true;
        end_run(&ending.span, &verdict);
        verdict
    })
}

struct Ending {
    span: Span,
    is_known: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.is_known {
            let why = "given up before it ended: it took longer than it may, panicked, or the bus stopped";
            failed(&self.span, "abandoned", why.to_owned());
        }
    }
}

fn end_run(span: &Span, verdict: &Verdict) {
    let (outcome, is_failure) = match verdict {
        Verdict::Ack { .. } => ("handled", false),
        Verdict::Defer { .. } => ("deferred", false),
        Verdict::Release(_) => ("released", false),
        Verdict::Fail(_) => ("failed", true),
        Verdict::Reject(_) => ("rejected", true),
        Verdict::Invalid(_) | Verdict::Unknown => ("invalid", true),
        Verdict::Misconfigured(_) => ("misconfigured", true),
        Verdict::Poison => ("poison", true),
        Verdict::Lost => ("lost", true),
    };
    match is_failure {
        true => failed(span, outcome, Failure::of(verdict.clone()).to_string()),
        false => span.set_attribute("dwell.outcome", outcome),
    }
}

fn failed(span: &Span, outcome: &'static str, why: String) {
    span.set_attribute("dwell.outcome", outcome);
    span.set_attribute("error.type", outcome);
    span.set_status(Status::error(why));
}
