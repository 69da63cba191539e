use dwell::{Event, State, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

struct NoMessage;

#[handler]
#[timeout("10s")]
async fn confirm(_: NoMessage) {}

#[handler]
async fn count(message: OrderPlaced, _: NoMessage) {
    println!("{}", message.order);
}

#[handler]
async fn answer(message: OrderPlaced, State(()): State<()>) -> u64 {
    message.order
}

fn main() {}
