//! The suite on the memory transport, with a second one as the store of all pending messages.

mod rig;

use rig::MemoryRig;
use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::main(|| MemoryRig::new("memory+memory").with_store())
}
