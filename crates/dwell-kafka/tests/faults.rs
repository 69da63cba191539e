//! Hard kills under load, on a real broker.

mod rig;

use dwell_conformance::kills;
use rig::KafkaRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    kills::main(|| KafkaRig::new("kafka"))
}
