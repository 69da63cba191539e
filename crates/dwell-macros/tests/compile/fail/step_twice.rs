use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[timeout("10s")]
#[timeout("5s")]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
