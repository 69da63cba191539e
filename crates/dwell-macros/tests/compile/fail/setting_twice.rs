use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[retry(max_retries = 3, max_retries = 4)]
#[timeout("10s", after = "5s")]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
