//! What the relay counts, for Prometheus.

use axum::{Router, http::header::CONTENT_TYPE, routing::get};
use dwell_core::{Error, ErrorKind, Result};
use dwell_kafka::Counts;
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;

/// Serves them from now on. Returns where, which matters if any port would do.
pub(super) async fn serve(address: SocketAddr, counts: Arc<Counts>) -> Result<SocketAddr> {
    let cannot = |error| {
        let text = format!("metrics cannot be served at {address}: choose another `--metrics`");
        Error::new(ErrorKind::Config, text).with_source(error)
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    let answer = move || async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4")], counts.prometheus()) };
    let pages = Router::new().route("/metrics", get(answer));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, pages).await {
            tracing::error!(%error, "metrics are served no longer");
        }
    });
    Ok(at)
}
