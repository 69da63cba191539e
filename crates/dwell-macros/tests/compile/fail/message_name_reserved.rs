use dwell::{Command, Event};
use serde::{Deserialize, Serialize};

#[derive(Command, Serialize, Deserialize)]
#[message(name = "shop.charge", topic = "dwell.charges")]
struct Charge;

#[derive(Command, Serialize, Deserialize)]
#[message(name = "job.resize")]
struct Resize;

#[derive(Event, Serialize, Deserialize)]
#[message(topic = "orders.dlq")]
struct OrderDied;

#[derive(Event, Serialize, Deserialize)]
struct Invalid;

fn main() {}
