//! Membership in a consumer group, shared by the consumers of subscriptions and the relay.
//!
//! A dedicated thread polls librdkafka whatever handlers do, and thereby keeps the membership. It
//! fetches no records: each partition has a queue of its own, from which the caller takes as many
//! records as it requests. A stalled caller thus holds no more than librdkafka's prefetch.
//! Partitions are assigned and revoked by cooperative rebalancing:
//!
//! * When a partition is revoked, no more of its records are handed out. The member waits for
//!   handlers up to a limit, and commits the mark and the records that are settled above it,
//!   before the partition is released.
//! * When a partition is lost because the broker has removed the member, it is dropped without a
//!   commit: another member owns it by now.

mod committer;
mod details;
mod doubts;
mod lane;
mod lanes;
mod member;
mod poller;
mod vitals;
mod watcher;
mod wish;

pub(crate) use details::REACH;
pub(crate) use lanes::{Settling, Taken};
pub(crate) use member::{Fetch, Member, MemberSettings, Offsets};
