//! Hard kills under load: of workers, of separate promoters that promote messages in many buckets,
//! and of the server itself.

#[path = "kills/mod.rs"]
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    let options = "promoter=elsewhere&shards=2&bucket=1s";
    dwell_conformance::kills::main(|| server::ServerRig::new("redis-promoters", options))
}
