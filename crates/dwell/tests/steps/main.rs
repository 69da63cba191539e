//! Each step around a handler.

#[path = "../common/mod.rs"]
mod common;

mod around;
mod circuit_breaker;
mod inbox;
mod rate_limit;
mod retry;
mod retry_inline;
mod timeout;
