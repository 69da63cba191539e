use dwell::{Bus, Command};
use serde::{Deserialize, Serialize};

#[derive(Command, Serialize, Deserialize)]
struct Charge {
    order: u64,
}

async fn charge(bus: Bus) {
    let _ = bus.publish(Charge { order: 42 }).await;
}

fn main() {}
