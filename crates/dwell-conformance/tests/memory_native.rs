//! The suite on the memory transport with `delay = "native"`, beside a store that is configured.

mod rig;

use rig::MemoryRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| MemoryRig::new("memory+memory-native").with_spare_store())
}
