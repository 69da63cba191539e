//! Export by OTLP.

use super::SCHEMA;
use dwell_core::{Error, ErrorKind, Result};
use opentelemetry::{InstrumentationScope, trace::TracerProvider};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

/// A layer for `tracing-subscriber` that exports every span to a collector, by OTLP over HTTP: `service` is what this
/// program is called there, `endpoint` where the collector listens, usually `http://localhost:4318`. What has not been
/// exported when the guard is dropped is exported then: keep it until the end.
///
/// ```no_run
/// use dwell::{prelude::*, telemetry};
/// use tracing_subscriber::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let (layer, _guard) = telemetry::otlp("shop", "http://localhost:4318")?;
/// tracing_subscriber::registry().with(layer).with(tracing_subscriber::fmt::layer()).init();
///
/// let bus = Bus::builder().start("memory://").await?;
/// // …
/// # bus.shutdown().await }
/// ```
///
/// It is the export alone that this gives: the spans of handlers and sends, and the trace context of messages, are there
/// with any layer of `tracing-opentelemetry`, set up as you like. It speaks plain HTTP, for a collector on the same
/// machine or in the same cluster; what leaves it with TLS is the collector's to do. `OTEL_RESOURCE_ATTRIBUTES`,
/// `OTEL_TRACES_SAMPLER` and `OTEL_BSP_*` in the environment have their usual meaning.
pub fn otlp<S>(
    service: impl Into<String>,
    endpoint: impl AsRef<str>,
) -> Result<(impl Layer<S> + Send + Sync + 'static, OtlpGuard)>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(traces_url(endpoint.as_ref())?)
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Config, format!("spans cannot be exported by OTLP: {error}"))
        })?;
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name(service.into()).build())
        .with_batch_exporter(exporter)
        .build();
    let scope = InstrumentationScope::builder("dwell")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA)
        .build();
    let tracer = provider.tracer_with_scope(scope);
    let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_threads(false);
    Ok((layer.with_tracked_inactivity(false), OtlpGuard(provider)))
}

/// Where traces go below an endpoint, by the rules of OTLP.
fn traces_url(endpoint: &str) -> Result<String> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or_default();
    let why = match scheme {
        "http" if !rest.trim_matches('/').is_empty() => {
            let base = endpoint.trim_end_matches('/');
            let base = base.strip_suffix("/v1/traces").unwrap_or(base);
            return Ok(format!("{base}/v1/traces"));
        }
        "https" => {
            "it is exported without TLS: give the URL of a collector nearby, which can go on with TLS, or set up a layer \
             of `tracing-opentelemetry` with an exporter of your own"
        }
        _ => "give the URL of a collector, such as \"http://localhost:4318\"",
    };
    // The URL itself may hold a secret.
    Err(Error::new(ErrorKind::Config, format!("spans cannot be exported to this OTLP endpoint: {why}")))
}

/// Exports what is left when it is dropped, which may take some seconds if the collector does not answer.
///
/// ```no_run
/// use tracing_subscriber::prelude::*;
///
/// fn main() -> Result<(), dwell::Error> {
///     let (layer, _guard) = dwell::telemetry::otlp("shop", "http://localhost:4318")?;
///     tracing_subscriber::registry().with(layer).init();
///     // … and what is left is exported here, where the guard goes out of scope.
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropped at once, it ends the export at once"]
pub struct OtlpGuard(SdkTracerProvider);

impl OtlpGuard {
    /// Exports now what has ended so far. It blocks its thread: in async code, only where that does no harm.
    ///
    /// ```no_run
    /// # fn example(guard: &dwell::telemetry::OtlpGuard) -> Result<(), dwell::Error> {
    /// guard.flush()?;
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.0.force_flush().map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the collector did not take the spans: {error}"))
        })
    }
}

impl Drop for OtlpGuard {
    fn drop(&mut self) {
        // There is nobody left to tell.
        let _ = self.0.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_below_the_endpoint_by_the_rules_of_otlp() {
        for endpoint in ["http://localhost:4318", "http://localhost:4318/", "http://localhost:4318/v1/traces"]
        {
            assert_eq!(traces_url(endpoint).unwrap(), "http://localhost:4318/v1/traces");
        }
        assert_eq!(traces_url("http://h/otlp/").unwrap(), "http://h/otlp/v1/traces");
    }

    #[test]
    fn what_cannot_be_exported_to_is_refused_without_a_secret_in_the_text() {
        for endpoint in ["https://user:hunter2@h", "hunter2", "http://", "grpc://hunter2"] {
            let error = traces_url(endpoint).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
