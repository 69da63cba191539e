use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[timeout("10s", step = 1)]
#[inbox(step = 2)]
#[reject_on_error(step = 1)]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
