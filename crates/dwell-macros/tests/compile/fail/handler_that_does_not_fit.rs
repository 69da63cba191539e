use dwell::prelude::*;

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
async fn count(message: OrderPlaced) -> u64 {
    message.order
}

fn main() {}
