//! The suite on a Redis cluster of three masters and three replicas.

mod rig;

use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| rig::RedisRig::new("redis-cluster", true, ""))
}
