//! What can be seen from outside: logs, spans and metrics.
//!
//! Logs and spans are `tracing`'s, whatever subscriber the program has. Each run of a handler is in a span `handle` that
//! names the message: `kind`, `id`, `topic`, `subscription` and `attempt`, and the `trace_id` that it shares with the
//! messages that it follows from. So does each log line about a message; none ever contains its payload.
//!
//! ```
//! use dwell::prelude::*;
//!
//! # #[derive(Command, Serialize, Deserialize)]
//! # #[message(name = "greet")]
//! # struct Greet { name: String }
//! async fn greet(message: Greet) {
//!     tracing::info!("hello"); // INFO handle{kind=greet id=… topic=greet subscription=greet attempt=1 …}: hello
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
//! tracing_subscriber::fmt().with_writer(std::io::stderr).init();
//! let bus = Bus::builder().handle(greet).inline().start("memory://").await?;
//! bus.send(Greet { name: "Alice".into() }).await?;
//! # bus.shutdown().await }
//! ```
//!
//! * Feature `metrics`: `Metrics`, for Prometheus.
//! * Feature `otel`: spans by OpenTelemetry's conventions, trace context over every hop, and `otlp` to export them.

mod departure;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "otel")]
mod otel;
mod span;

pub(crate) use departure::{Departure, batch_span};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "otel")]
pub use otel::{OtlpGuard, otlp};
pub(crate) use span::{in_span, on_thread, span};

/// The examples of the page of the documentation.
#[cfg(all(doctest, feature = "metrics", feature = "otel"))]
#[doc = include_str!("../../../../docs/observability.md")]
struct Page;
