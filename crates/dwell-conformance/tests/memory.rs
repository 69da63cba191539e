//! The suite on the memory transport.

mod rig;

use rig::MemoryRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| MemoryRig::new("memory"))
}
