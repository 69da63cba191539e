//! Logs, spans and metrics of a running bus.
//!
//! The example logs a warning about a busy gateway, and prints a page of metrics. With
//! `OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318`, it exports spans to that collector.

use dwell::{
    prelude::*,
    telemetry::{self, Metrics},
};
use std::{env, time::Duration};
use tracing_subscriber::prelude::*;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "payments.charge")]
struct Charge {
    order: u64,
}

#[handler]
#[retry(max_retries = 3, base_delay = "100ms")]
async fn charge(message: Charge, cx: Cx) -> Result<(), Failure> {
    if cx.attempt() == 1 {
        return Err("the gateway is busy".into());
    }
    tracing::info!(order = message.order, "charged");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), dwell::Error> {
    // The guard exports the remaining spans when the program ends.
    let (layer, _guard) = match env::var("OTEL_EXPORTER_OTLP_ENDPOINT") {
        Ok(endpoint) => telemetry::otlp("shop", endpoint).map(|(layer, guard)| (Some(layer), Some(guard)))?,
        Err(_) => (None, None),
    };
    tracing_subscriber::registry().with(layer).with(tracing_subscriber::fmt::layer()).init();

    let url = env::args().nth(1).or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let metrics = Metrics::new();
    let bus = Bus::builder().metrics(&metrics).handle(charge).start(&url).await?;
    bus.send(Charge { order: 42 }).await?;
    // A retry takes longer on a broker whose delays have a resolution of seconds.
    let mut page = metrics.render(&bus).await;
    for _ in 0..300 {
        if counted(&page, "handled") == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        page = metrics.render(&bus).await;
    }
    println!("{page}");
    assert_eq!((counted(&page, "handled"), counted(&page, "failed"), counted(&page, "rejected")), (1, 1, 0));
    bus.shutdown().await
}

/// Number of deliveries with this outcome on the page.
fn counted(page: &str, outcome: &str) -> u64 {
    let of_outcome =
        |line: &&str| line.starts_with("dwell_deliveries_total{") && line.contains(&format!("\"{outcome}\""));
    let values =
        page.lines().filter(of_outcome).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}
