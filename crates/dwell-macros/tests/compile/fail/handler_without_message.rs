use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[timeout("10s")]
async fn confirm() {}

fn unused(message: OrderPlaced) -> u64 {
    message.order
}

fn main() {}
