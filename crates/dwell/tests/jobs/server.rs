//! One private server for all stories of this program.

use dwell_conformance::servers::redis::{RedisOptions, RedisServer};
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

/// Where there is nothing yet, and nobody else comes.
pub fn fresh_url() -> String {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let server =
        SERVER.get_or_init(|| RedisServer::start(RedisOptions::default()).expect("the server starts"));
    format!("{}?prefix=story-{}", server.url(), NEXT.fetch_add(1, Ordering::Relaxed))
}
