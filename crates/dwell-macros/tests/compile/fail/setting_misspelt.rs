use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[retry(max_retrys = 3)]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
