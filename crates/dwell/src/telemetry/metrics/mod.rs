//! Metrics, in the text format that Prometheus reads.

mod histogram;
mod live;
mod report;
mod scrape;

use crate::bus::Bus;
use dwell_engine::Observer;
use live::Live;
use prometheus_client::{encoding::text, registry::Registry};
use report::Report;
use scrape::Scrape;
use std::sync::Arc;

/// The metrics of a bus: counts what becomes of messages as it happens, and looks at the rest when it is asked. Cheap to
/// clone. One for each bus.
///
/// ```
/// use dwell::{prelude::*, telemetry::Metrics};
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "payments.charge")]
/// struct Charge { order: u64 }
///
/// async fn charge(_: Charge) {}
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let metrics = Metrics::new();
/// let bus = Bus::builder().metrics(&metrics).handle(charge).inline().start("memory://").await?;
/// bus.send(Charge { order: 42 }).await?;
///
/// let page = metrics.render(&bus).await;
/// assert!(page.contains(r#"dwell_messages_published_total{topic="payments.charge"} 1"#));
/// assert!(page.contains("dwell_transport_up 1"));
/// # bus.shutdown().await }
/// ```
///
/// Serve the page with the HTTP server that the program has anyway: answer `GET /metrics` with
/// [`render`](Self::render) as the body and [`CONTENT_TYPE`](Self::CONTENT_TYPE) as its type.
///
/// Counting costs a few atomic additions for each message and allocates nothing. Whatever a transport cannot tell is
/// left out: see [`render`](Self::render).
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    live: Arc<Live>,
}

impl Metrics {
    /// The content type of the page.
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Metrics that have counted nothing yet. Give them to a bus with [`Builder::metrics`](crate::Builder::metrics).
    ///
    /// ```
    /// # use dwell::{Bus, telemetry::Metrics};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let metrics = Metrics::new();
    /// let bus = Bus::builder().metrics(&metrics).start("memory://").await?;
    /// # bus.shutdown().await }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        self.live.clone()
    }

    /// All metrics of the bus, as one page.
    ///
    /// It never fails, because monitoring is needed most when something is wrong. A transport without a ledger leaves
    /// out `dwell_messages` and `dwell_oldest_ready_age_seconds`; one that cannot list what waits either also
    /// `dwell_oldest_overdue_seconds`; a bus without a forwarder `dwell_scheduler_last_tick_timestamp_seconds`. What
    /// does not answer within five seconds is left out as well, and `dwell_transport_up` is then 0.
    ///
    /// ```
    /// # use dwell::{Bus, telemetry::Metrics};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let metrics = Metrics::new();
    /// # let bus = Bus::builder().metrics(&metrics).start("memory://").await?;
    /// let page = metrics.render(&bus).await;
    /// assert!(page.starts_with("# HELP dwell_") && page.ends_with("# EOF\n"));
    /// let answer = ([("content-type", Metrics::CONTENT_TYPE)], page); // with axum
    /// # bus.shutdown().await }
    /// ```
    pub async fn render(&self, bus: &Bus) -> String {
        let scrape = Scrape::of(bus).await;
        // So that whoever looks at rates sees the first message, too: its counters were there before, at zero.
        for pump in &scrape.pumps {
            self.live.series(&pump.topic, &pump.subscription, |_| ());
        }
        let mut registry = Registry::with_prefix("dwell");
        registry.register_collector(Box::new(Report { live: self.live.clone(), scrape }));
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("a string takes all that is written to it");
        page
    }
}
