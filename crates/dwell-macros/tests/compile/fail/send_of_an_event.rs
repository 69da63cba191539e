use dwell::{Bus, Event};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

async fn place(bus: Bus) {
    let _ = bus.send(OrderPlaced { order: 42 }).await;
}

fn main() {}
