//! A partitioned log that supports only append and ack, modelled after Kafka. It is the transport
//! with the fewest capabilities, to test the parts of the engine that fill them in.
//!
//! A [`LogBroker`] is the server. It is durable: [`LogBroker::restart`] keeps appended and
//! committed data. A [`Log`] is one client connected to it.
//!
//! * A topic has partitions. Messages with a key always go to the same partition; messages without
//!   a key are distributed in turn.
//! * A subscription is a consumer group `{topic}.{subscription}` with a committed offset for each
//!   partition. It has its own retry topic `dwell.retry.{topic}.{subscription}`, which its
//!   consumers also read. Messages addressed to one subscription go there. Two pairs of names that
//!   result in one group name are a `Conflict`.
//! * New groups start at the earliest record of topics that keep messages (commands, `.dlq`,
//!   `.invalid`), and at the latest record of all others. This offset is committed when they are
//!   provisioned. The first named subscription of a topic that keeps messages starts at the
//!   position of the default subscription, takes over the records of its retry topic, and replaces
//!   it.
//! * Partitions are distributed among the live members of a group, and move as little as possible.
//!   Each assignment has an epoch, which is the fence of its receipts. The new owner of a partition
//!   reads again from the committed offset, and the receipts of the old owner are `Stale`. Members
//!   stay in the group until they leave, however rarely they receive. A member whose session was
//!   dropped joins again with its next receive.
//! * Acks may come in any order. Each one commits the end of the contiguous range. A partition
//!   whose uncommitted span has reached its maximum is not read further.
//! * A record consists of the message's key, body and headers as [`dwell_core::wire`] writes them.
//!   A foreign record without an id gets an id from its position. A record with unreadable counts
//!   is delivered with a [`dwell_core::Delivery::problem`], and the unreadable header under
//!   `x-dwell-unreadable-…`.

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
