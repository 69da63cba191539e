//! Runs the suite on a real broker in real time. Delayed messages wait in a SQLite file, where they
//! can be changed.

mod rig;

use rig::KafkaRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| KafkaRig::new("kafka+sqlite").with_store())
}
