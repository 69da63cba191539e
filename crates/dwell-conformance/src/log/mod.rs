//! A partitioned log with nothing but append and ack, modelled after Kafka: the poorest transport that there is, so
//! that everything filled in above it is proven before the first real log arrives.
//!
//! A [`LogBroker`] is the server, and durable: it keeps what was appended and committed over [`LogBroker::restart`]. A
//! [`Log`] is one client connected to it.
//!
//! * A topic has partitions. A key always goes to the same one; messages without a key take turns.
//! * A subscription is a consumer group `{topic}.{subscription}` with a committed offset for each partition, and it has
//!   a retry topic `dwell.retry.{topic}.{subscription}` of its own that its consumers also read: that is how it is
//!   addressed alone. Two pairs of names that make one group are a `Conflict`.
//! * New groups start at the earliest record of topics that keep (commands, `.dlq`, `.invalid`), and at the latest of
//!   all others, committed when they are provisioned. The first named subscription of a topic that keeps starts where
//!   the default one stands, takes over what lies in its retry topic, and the default one is gone.
//! * Partitions are divided among the live members of a group, and move only as far as they have to. Each assignment
//!   has an epoch, which is the fence of its receipts: what moves is read again from the committed offset by its new
//!   owner, and the receipts of the old one are `Stale`. Members live until they leave, however seldom they receive;
//!   one whose session was dropped joins again with its next receive.
//! * Acks may come in any order; the contiguous mark is committed with each. A partition whose uncommitted span is at
//!   its bound is not read any further.
//! * A record is the message's key, body, and headers as [`dwell_core::wire`] writes them. A foreign record without an
//!   id is named after its position. One whose counts cannot be read is handed out with its
//!   problem, and the unreadable header under `x-dwell-unreadable-…`.

mod broker;
mod consumer;
mod group;
mod producer;
mod provision;
mod record;
#[cfg(test)]
mod tests;
mod transport;

pub use broker::{LogBroker, LogSettings};
pub use transport::Log;
