//! Conformance suite for SQLite on virtual time.

mod rig;

use rig::SqliteRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    rig::run(|| dwell_conformance::main(|| SqliteRig::new("sqlite")))
}
