//! The suite on a Redis cluster, with pending messages distributed over more slots than those of
//! the topics.

mod rig;

use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| rig::RedisRig::new("redis-sharded", true, "&shards=4&bucket=1s"))
}
