//! The contract between Dwell and its transports.
#![forbid(unsafe_code)]

mod error;
mod time;

pub use error::{BoxError, Error, ErrorKind, Result};
pub use time::{Due, Timestamp};

pub mod duration;
mod name;
mod quote;
mod secret;
mod suggest;
mod time_text;
mod url;

pub use duration::{format_duration, parse_duration};
pub use name::{check_id, check_subscription, check_topic, check_user_topic};
pub use secret::Secret;
pub use suggest::suggest;
pub use url::{Options, TransportUrl};
