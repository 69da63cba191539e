//! One span per run of a handler. It names the message, never its payload.

#[cfg(feature = "otel")]
use super::otel;
use crate::cx::Cx;
use dwell_core::BoxFuture;
use dwell_engine::Verdict;
use tracing::{Instrument, Span};

/// The span of a run, with what else a feature wants to have in it.
macro_rules! run_span {
    ($cx:expr $(, $($field:tt)*)?) => {
        tracing::info_span!(
            target: "dwell",
            "handle",
            kind = %$cx.message().kind,
            id = %$cx.id(),
            topic = $cx.topic(),
            subscription = $cx.subscription(),
            attempt = $cx.attempt(),
            trace_id = tracing::field::Empty
            $(, $($field)*)?
        )
    };
}

/// The message's span, if anybody looks.
pub(crate) fn span(cx: &Cx) -> Option<Span> {
    #[cfg(not(feature = "otel"))]
    let span = run_span!(cx);
    #[cfg(feature = "otel")]
    let span =
        run_span!(cx, otel.kind = "consumer", otel.name = %format_args!("{} {}", otel::PROCESS, cx.topic()));
    if span.is_disabled() {
        return None;
    }
    #[cfg(feature = "otel")]
    otel::begin_run(&span, cx);
    span.record("trace_id", format_args!("{:032x}", cx.trace().trace_id));
    Some(span)
}

/// Runs within the message's span.
pub(crate) fn in_span(
    span: Span,
    start: impl FnOnce() -> BoxFuture<'static, Verdict>,
) -> BoxFuture<'static, Verdict> {
    let run = span.in_scope(start);
    #[cfg(feature = "otel")]
    let run = otel::until_end(span.clone(), run);
    Box::pin(run.instrument(span))
}

/// What a thread does of a run: it is in the span that the run was asked for from.
pub(crate) fn on_thread(cx: &Cx) {
    #[cfg(feature = "otel")]
    otel::go_on(&Span::current(), cx);
    #[cfg(not(feature = "otel"))]
    let _ = cx;
}
