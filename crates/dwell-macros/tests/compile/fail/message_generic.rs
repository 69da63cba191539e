use dwell::Event;
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct Changed<T> {
    now: T,
}

fn main() {}
