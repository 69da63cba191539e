//! A handler with all steps in source order, and one with numbered steps.
#![deny(warnings)]

use std::io;

use dwell::{Event, IntoHandler as _, State, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[derive(Clone)]
struct Shop;

/// Sends a confirmation to the customer.
#[handler]
#[defer_on_error(delay = "30s")]
#[reject_on_error]
#[release_on_error]
#[inbox(keep = "7d")]
#[circuit_breaker(failures = 5, open_for = "30s")]
#[rate_limit(per_second = 10, burst = 5)]
#[timeout("10s")]
#[retry(max_retries = 20, base_delay = "1s", max_delay = "1h", jitter = 0.15)]
#[retry_inline(max_retries = 3, base_delay = "100ms", max_delay = "1s")]
async fn confirm(OrderPlaced { order }: OrderPlaced, State(Shop): State<Shop>) -> Result<(), io::Error> {
    println!("{order}");
    Ok(())
}

#[handler]
#[dwell::timeout(after = "1m 30s", step = 2)]
#[defer_on_error("0s", step = -1)]
#[rate_limit(step = 3, per_second = 0.5)]
#[inbox(step = 1)]
async fn count(mut message: OrderPlaced) {
    message.order += 1;
    println!("{}", message.order);
}

fn main() {
    let _ = confirm.into_handler();
    let _ = count.into_handler();
}
