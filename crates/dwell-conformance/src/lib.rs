//! The suite that every transport of Dwell passes, for any transport, and [`log`]: a partitioned log with nothing but
//! append and ack, to test what is built above transports.
#![forbid(unsafe_code)]

pub mod log;
