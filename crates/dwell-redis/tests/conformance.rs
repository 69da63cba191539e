//! The suite on one Redis server.

mod rig;

use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| rig::RedisRig::new("redis", false, ""))
}
