//! Spans by OpenTelemetry's conventions for messaging, on any `tracing` subscriber that has its layer.
//!
//! Where there is no such layer, all of this does nothing.

mod export;
mod headers;
mod run;
mod send;

pub use export::{OtlpGuard, otlp};
pub(super) use headers::inject;
pub(super) use run::{PROCESS, begin_run, go_on, until_end};
pub(super) use send::{batch_span, end_sending, sending_span};

use crate::trace::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The version of the conventions, as the schema of what is exported.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
/// `messaging.system`.
const SYSTEM: &str = "dwell";

/// What every span of ours says.
fn describe(span: &Span, operation: &'static str) {
    span.set_attribute("messaging.system", SYSTEM);
    span.set_attribute("messaging.operation.type", operation);
    span.set_attribute("messaging.operation.name", operation);
}

/// What it says about one message, never its payload.
fn describe_message(span: &Span, topic: &str, message: &dwell_core::Message) {
    span.set_attribute("messaging.destination.name", topic.to_owned());
    span.set_attribute("messaging.message.id", message.id.to_string());
    span.set_attribute("messaging.message.body.size", i64::try_from(message.body.len()).unwrap_or(i64::MAX));
}

/// Where a span is in its trace. `None` if nobody traces it.
fn trace_of(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let of = context.span().span_context().clone();
    of.is_valid().then(|| TraceContext {
        trace_id: u128::from_be_bytes(of.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(of.span_id().to_bytes()),
        sampled: of.is_sampled(),
    })
}

fn span_context(trace: TraceContext) -> SpanContext {
    let flags = if trace.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (TraceId::from(trace.trace_id), SpanId::from(trace.span_id));
    SpanContext::new(trace_id, span_id, flags, true, TraceState::default())
}
