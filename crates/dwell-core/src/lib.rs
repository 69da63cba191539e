//! The contract between Dwell and its transports.
#![forbid(unsafe_code)]

mod error;
mod time;
pub mod wheel;

pub use error::{BoxError, Error, ErrorKind, Result};
pub use time::{Due, Timestamp};
