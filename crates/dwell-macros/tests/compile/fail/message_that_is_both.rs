use dwell::{Command, Event};
use serde::{Deserialize, Serialize};

#[derive(Command, Event, Serialize, Deserialize)]
struct Charge {
    order: u64,
}

fn main() {}
