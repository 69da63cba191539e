//! Dwell on Apache Kafka: topics and consumer groups for what is due, delay topics for what is not, and the relay that
//! empties them on the millisecond.
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
//! What lies in the broker, and under which names, is documented for people who look at it with other tools, and for
//! clients in other languages that produce into the delay topics: see the page on Kafka in the documentation.
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

/// Connects to the brokers that a URL names.
pub async fn connect(url: &TransportUrl, seams: Seams) -> Result<Kafka> {
    Kafka::connect(KafkaSettings::from_url(url)?, seams).await
}
