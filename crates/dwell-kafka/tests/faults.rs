//! Hard kills under load, on a real broker: of workers, each of which runs a relay, and of the broker.

mod rig;

use dwell_conformance::kills;
use rig::KafkaRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    kills::main(|| KafkaRig::new("kafka").with_relays_inside())
}
