//! Dwell on Apache Kafka. Topics and consumer groups carry messages that are due; delay topics
//! hold messages that are not due yet, and the relay forwards them when they are.
//!
//! ```no_run
//! use dwell_core::{Seams, TransportUrl};
//!
//! # async fn example() -> dwell_core::Result<()> {
//! let url = TransportUrl::parse("kafka://localhost:9092?partitions=12&replication=3")?;
//! let kafka = dwell_kafka::connect(&url, Seams::system("shop")).await?;
//! # Ok(()) }
//! ```
//!
//! The names of topics, groups and headers are documented, because people inspect them with other
//! tools and clients in other languages produce into the delay topics: see the page on Kafka in
//! the documentation.
#![forbid(unsafe_code)]

mod catalogue;
mod cluster;
mod consumer;
mod fault;
mod group;
mod headers;
mod kept;
mod names;
mod outbox;
mod probe;
mod producer;
mod provision;
mod record;
mod relay;
mod settings;
mod transport;
mod trouble;

pub use relay::{Counts, Ladder, RelaySettings, Tally, relay};
pub use settings::{KafkaSettings, Sasl, Tls};
pub use transport::Kafka;

use dwell_core::{Result, Seams, TransportUrl};

/// Connects to the brokers in a URL.
pub async fn connect(url: &TransportUrl, seams: Seams) -> Result<Kafka> {
    Kafka::connect(KafkaSettings::from_url(url)?, seams).await
}
