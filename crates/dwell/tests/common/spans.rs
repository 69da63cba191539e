//! Spans, kept in memory.
#![allow(dead_code, reason = "no file of tests uses all of it")]

use opentelemetry::trace::{SpanId, SpanKind, TracerProvider};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use std::sync::{Arc, Mutex};
use tracing::Subscriber;
use tracing_subscriber::prelude::*;

/// Every span that has ended, in the order in which they did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl Spans {
    /// A subscriber whose spans end up here.
    pub(crate) fn subscriber(&self) -> impl Subscriber + Send + Sync + 'static {
        let provider = SdkTracerProvider::builder().with_simple_exporter(self.clone()).build();
        let tracer = provider.tracer("test");
        // The layer keeps the tracer, and that keeps the provider.
        tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer))
    }

    pub(crate) fn all(&self) -> Vec<SpanData> {
        self.0.lock().unwrap().clone()
    }

    /// Those of this name, in order.
    pub(crate) fn named(&self, name: &str) -> Vec<SpanData> {
        self.all().into_iter().filter(|span| span.name == name).collect()
    }

    /// The only one of this name.
    pub(crate) fn one(&self, name: &str) -> SpanData {
        let mut named = self.named(name);
        let names: Vec<_> = self.all().into_iter().map(|span| span.name).collect();
        assert_eq!(named.len(), 1, "`{name}` in {names:?}");
        named.remove(0)
    }
}

/// What a span says under this name.
pub(crate) fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}

pub(crate) fn is_child(child: &SpanData, parent: &SpanData) -> bool {
    child.parent_span_id == parent.span_context.span_id()
        && child.span_context.trace_id() == parent.span_context.trace_id()
}

/// Whether it begins a trace of its own that is linked to where it came from.
pub(crate) fn is_linked(later: &SpanData, sender: &SpanData) -> bool {
    later.parent_span_id == SpanId::INVALID
        && later.span_context.trace_id() != sender.span_context.trace_id()
        && later.links.len() == 1
        && later.links[0].span_context.span_id() == sender.span_context.span_id()
        && later.links[0].span_context.trace_id() == sender.span_context.trace_id()
        && later.span_kind == SpanKind::Consumer
}
