use dwell::prelude::*;

#[derive(Command, Serialize, Deserialize)]
struct Charge {
    order: u64,
}

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

async fn charge(_: Charge) {}

async fn confirm(_: OrderPlaced) {}

fn main() {
    let _ = Bus::builder().handle(confirm);
    let _ = Bus::builder().subscribe("cashier", charge);
}
