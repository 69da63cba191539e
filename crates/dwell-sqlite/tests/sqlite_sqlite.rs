//! Conformance suite for SQLite on virtual time, with a second file as the store of all pending
//! messages.

mod rig;

use rig::SqliteRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    rig::run(|| dwell_conformance::main(|| SqliteRig::new("sqlite+sqlite").with_store()))
}
