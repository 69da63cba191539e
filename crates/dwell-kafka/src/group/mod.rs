//! A member of a consumer group: what a consumer of a subscription and the relay have in common.
//!
//! A thread of its own polls the client library, whatever handlers do, and so stays a member. It brings no records: each
//! partition has a queue of its own, from which whoever receives takes as much as was asked for, so that a stalled
//! receiver holds no more than the library's prefetch. Partitions come and go by cooperative rebalancing:
//!
//! * taken away: nothing more is handed out, what is being worked on is waited for, up to a limit, and the mark is
//!   committed before the partition is let go, together with what is done above it;
//! * lost, because the broker has given up on us: dropped without a commit, since it is somebody else's by now.

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
