use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[reject_on_error(colour = "red")]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
