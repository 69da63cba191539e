use dwell::prelude::*;

/// Serde's `Serialize` and `Deserialize` were forgotten.
#[derive(Event)]
struct OrderPlaced {
    order: u64,
}

#[handler]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
