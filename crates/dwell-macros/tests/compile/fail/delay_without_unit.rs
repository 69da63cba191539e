use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[defer_on_error(delay = 30)]
#[timeout("10")]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
