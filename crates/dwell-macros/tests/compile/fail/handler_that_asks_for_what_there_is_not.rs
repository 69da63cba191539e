use dwell::prelude::*;

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

struct Mailer;

#[handler]
async fn confirm(_: OrderPlaced, _: Mailer) {}

fn main() {}
