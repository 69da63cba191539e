//! Trace context in a message's headers, by the W3C's names.

use dwell_core::Headers;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TraceContextExt,
};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Writes where a span is in its trace, and its baggage. Says whether it is traced at all.
pub(in crate::telemetry) fn inject(span: &Span, headers: &mut Headers) -> bool {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return false;
    }
    let mut writer = Writer(headers);
    TraceContextPropagator::new().inject_context(&context, &mut writer);
    BaggagePropagator::new().inject_context(&context, &mut writer);
    true
}

/// The sender's place in its trace, if it wrote a valid one, and its baggage.
pub(super) fn extract(headers: &Headers) -> Context {
    TraceContextPropagator::new().extract_with_context(&extract_baggage(headers), &Reader(headers))
}

/// The sender's baggage alone.
pub(super) fn extract_baggage(headers: &Headers) -> Context {
    BaggagePropagator::new().extract_with_context(&Context::new(), &Reader(headers))
}

struct Writer<'a>(&'a mut Headers);

impl Injector for Writer<'_> {
    fn set(&mut self, key: &str, value: String) {
        // What the sender gave stands as it is.
        if !value.is_empty() && self.0.get(key).is_none() {
            self.0.append(key, value);
        }
    }
}

struct Reader<'a>(&'a Headers);

impl Extractor for Reader<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get_text(key)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| &**name).collect()
    }
}
