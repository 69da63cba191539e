//! Metrics of the relay for Prometheus, and its health.

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use dwell_core::{Error, ErrorKind, Result};
use dwell_kafka::{Counts, Tally};
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;

/// Starts the server. Returns its address, which is only known now if any port was requested.
pub(super) async fn serve(address: SocketAddr, counts: Arc<Counts>) -> Result<SocketAddr> {
    let cannot = |error| {
        let text = format!("metrics cannot be served at {address}: choose another address with `--metrics`");
        Error::new(ErrorKind::Config, text).with_source(error)
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let at = listener.local_addr().map_err(cannot)?;
    let of_health = counts.clone();
    let answer = move || async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4")], counts.prometheus()) };
    let health = move || async move { health(&of_health.tally()) };
    let pages = Router::new().route("/metrics", get(answer)).route("/health", get(health));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, pages).await {
            tracing::error!(%error, "metrics server failed; metrics are no longer available");
        }
    });
    Ok(at)
}

/// Returns whether the records of every delay topic arrive.
fn health(tally: &Tally) -> (StatusCode, String) {
    if tally.troubled.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = tally.troubled.iter().map(|(topic, why)| format!("{topic}: {why}\n"));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_healthy_while_the_records_of_every_delay_topic_arrive() {
        let mut tally = Counts::default().tally();
        assert_eq!(health(&tally), (StatusCode::OK, "ok\n".to_owned()));
        tally.troubled.insert("delay-5s".to_owned(), "outside its group for 12 s".to_owned());
        let (status, text) = health(&tally);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text, "delay-5s: outside its group for 12 s\n");
    }
}
