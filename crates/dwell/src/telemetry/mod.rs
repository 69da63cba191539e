//! What can be seen from outside: logs, spans and metrics.
//!
//! Logs and spans are `tracing`'s, whatever subscriber the program has. Each run of a handler is in a span `handle` that
//! names the message: `kind`, `id`, `topic`, `subscription` and `attempt`, and the `trace_id` that it shares with the
//! messages that it follows from. So does each log line about a message; none ever contains its payload.
//!
//! * Feature `metrics`: `Metrics`, for Prometheus.
//! * Feature `otel`: spans by OpenTelemetry's conventions, trace context over every hop, and `otlp` to export them.

#[cfg(feature = "metrics")]
mod metrics;
mod span;

#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub(crate) use span::{in_span, span};
