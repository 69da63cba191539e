//! A blocking function can be a handler, and the attribute needs no steps.
#![deny(warnings)]

use dwell::{Command, IntoHandler as _, handler};
use serde::{Deserialize, Serialize};

#[derive(Command, Serialize, Deserialize)]
struct Resize {
    width: u32,
}

#[handler]
#[retry(max_retries = 0)]
fn resize(message: Resize) -> Result<(), std::fmt::Error> {
    if message.width == 0 { Err(std::fmt::Error) } else { Ok(()) }
}

#[handler]
fn forget(_: Resize) {}

fn main() {
    assert!(resize::call(Resize { width: 1 }).is_ok());
    assert!(resize::call(Resize { width: 0 }).is_err());
    let _ = (resize.into_handler(), forget.into_handler());
}
