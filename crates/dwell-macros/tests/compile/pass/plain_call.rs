//! The plain function can be called in addition to the handler, which is a normal function.
#![deny(warnings)]

use dwell::{Event, IntoHandler as _, handler};
use serde::{Deserialize, Serialize};

#[derive(Event, Serialize, Deserialize)]
struct OrderPlaced {
    order: u64,
}

#[handler]
#[timeout("10s")]
#[reject_on_error]
async fn confirm(message: OrderPlaced) -> Result<(), std::fmt::Error> {
    if message.order == 0 { Err(std::fmt::Error) } else { Ok(()) }
}

async fn calls() -> Result<(), std::fmt::Error> {
    confirm::call(OrderPlaced { order: 42 }).await
}

fn main() {
    drop(calls());
    let _ = (confirm.into_handler(), confirm());
    // A variable may have the same name.
    let confirm = 42;
    assert_eq!(confirm, 42);
}
