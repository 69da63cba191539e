//! The suite on one Redis server, with a SQLite file as the store of all pending messages.

mod rig;

use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| rig::RedisRig::new("redis+sqlite", false, "").with_store())
}
