//! Hard kills under load, of workers, which are promoters as well, and of the server itself.

#[path = "kills/mod.rs"]
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    dwell_conformance::kills::main(|| server::ServerRig::new("redis", ""))
}
