//! The span of a send: what a message that follows from it is a child of, or linked to.

use super::{describe, describe_message, headers, span_context};
use crate::{Cx, Sent};
use dwell_core::{Envelope, Result};
use opentelemetry::trace::{Status, TraceContextExt};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A message that is sent by itself is created and sent in one step; one of a batch is created, then sent with others.
const SEND: &str = "send";
const CREATE: &str = "create";

/// The span of one message: a child of the current span, or else of the run that sends it.
pub(in crate::telemetry) fn sending_span(envelope: &Envelope, from: Option<&Cx>, is_alone: bool) -> Span {
    let (message, topic) = (&envelope.message, envelope.to.topic_name());
    let operation = if is_alone { SEND } else { CREATE };
    let span = tracing::info_span!(
        target: "dwell",
        "send",
        kind = %message.kind,
        id = %message.id,
        topic = %topic,
        otel.kind = "producer",
        otel.name = %format_args!("{operation} {topic}"),
    );
    if span.is_disabled() {
        return span;
    }
    if let Some(cx) = from
        && !is_traced(&Span::current().context())
        && !is_traced(&opentelemetry::Context::current())
    {
        // It is sent from a task that the run has started.
        let parent = headers::extract_baggage(cx.headers());
        let _ = span.set_parent(parent.with_remote_span_context(span_context(cx.trace())));
    }
    describe(&span, operation);
    describe_message(&span, topic, message);
    span
}

/// The span around a batch, whose messages have one each.
pub(in crate::telemetry) fn batch_span(messages: usize) -> Span {
    let span = tracing::info_span!(target: "dwell", "send", otel.kind = "client", otel.name = SEND);
    if !span.is_disabled() {
        describe(&span, SEND);
        span.set_attribute("messaging.batch.message_count", i64::try_from(messages).unwrap_or(i64::MAX));
    }
    span
}

pub(in crate::telemetry) fn end_sending(span: &Span, result: &Result<Sent>) {
    if let Err(error) = result {
        span.set_attribute("error.type", error.kind().to_string());
        span.set_status(Status::error(error.to_string()));
    }
}

fn is_traced(context: &opentelemetry::Context) -> bool {
    context.span().span_context().is_valid()
}
