use dwell::Event;
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
#[message(name = "orders/placed")]
struct OrderPlaced;

#[derive(Event, Serialize, Deserialize)]
#[message(topic = "")]
struct OrderPaid;

#[derive(Event, Serialize, Deserialize)]
#[message(name = 42)]
struct OrderSent;

fn main() {}
