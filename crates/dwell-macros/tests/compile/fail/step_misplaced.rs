use dwell::{Event, handler, inbox, timeout};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[timeout("10s")]
async fn without_handler(message: OrderPlaced) {
    println!("{}", message.order);
}

#[inbox]
#[handler]
async fn above_handler(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
