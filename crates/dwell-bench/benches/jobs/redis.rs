//! Jobs on Redis, beside the bare transport in the same run, each on a private server.
//!
//! `cargo xtask bench redis` also runs it; `--json` prints one object per line, `--smoke` only
//! checks that it runs.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod beside;
mod rate;

use beside::Scale;
use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use dwell_core::{Transport, TransportUrl};
use std::sync::Arc;

fn main() {
    beside::run(
        "redis",
        Scale { rounds: 5, messages: 20_000 },
        || RedisServer::start(RedisOptions::default()).expect("a private server starts"),
        RedisServer::url,
        async |server, seams| {
            let url = TransportUrl::parse(&server.url()).expect("it is a URL");
            Arc::new(dwell_redis::connect(&url, seams).await.expect("the server answers"))
                as Arc<dyn Transport>
        },
    );
}
