//! What can be seen from outside: spans, metrics.

use crate::cx::Cx;
use dwell_core::BoxFuture;
use dwell_engine::Verdict;
use tracing::{Instrument, Span};

/// One span per run. It names the message, never its payload.
pub(crate) fn span(cx: &Cx) -> Span {
    let message = cx.message();
    let span = tracing::info_span!(
        target: "dwell",
        "handle",
        kind = %message.kind,
        id = %message.id,
        topic = cx.topic(),
        subscription = cx.subscription(),
        attempt = cx.attempt(),
        trace_id = tracing::field::Empty,
    );
    if !span.is_disabled() {
        span.record("trace_id", format_args!("{:032x}", cx.trace().trace_id));
    }
    span
}

/// Runs within the message's span, if anybody looks.
pub(crate) fn in_span(
    cx: &Cx,
    start: impl FnOnce() -> BoxFuture<'static, Verdict>,
) -> BoxFuture<'static, Verdict> {
    let span = span(cx);
    if span.is_disabled() {
        return start();
    }
    let run = span.in_scope(start);
    Box::pin(run.instrument(span))
}
