use dwell::Event;
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
#[message(tpoic = "orders")]
struct OrderPlaced;

#[derive(Event, Serialize, Deserialize)]
#[message(name = "shop.paid", name = "shop.order_paid")]
struct OrderPaid;

#[derive(Event, Serialize, Deserialize)]
#[message = "shop.sent"]
struct OrderSent;

fn main() {}
