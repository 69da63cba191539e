//! Kills workers, each of which runs a relay, and the broker, under load on a real broker.

mod rig;

use dwell_conformance::kills;
use rig::KafkaRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    kills::main(|| KafkaRig::new("kafka").with_relays_inside())
}
