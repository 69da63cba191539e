use dwell::prelude::*;

/// Lacks serde's `Serialize` and `Deserialize`.
#[derive(Event)]
struct OrderPlaced {
    order: u64,
}

#[handler]
async fn confirm(message: OrderPlaced) {
    println!("{}", message.order);
}

fn main() {}
