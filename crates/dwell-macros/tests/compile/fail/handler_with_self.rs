use dwell::{Event, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

struct Shop;

impl Shop {
    #[handler]
    #[timeout("10s")]
    async fn confirm(&self, message: OrderPlaced) {
        println!("{}", message.order);
    }
}

fn main() {}
