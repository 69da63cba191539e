use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[retry(max_retries = -1)]
#[retry_inline(base_delay = "10s", max_delay = "1s")]
#[rate_limit(per_second = 0)]
#[circuit_breaker(failures = 0)]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
