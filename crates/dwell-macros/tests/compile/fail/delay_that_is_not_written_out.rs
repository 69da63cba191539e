use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

const PATIENCE: &str = "10s";

#[handler]
#[timeout(PATIENCE)]
#[defer_on_error(delay = std::time::Duration::from_secs(30))]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
