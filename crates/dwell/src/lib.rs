//! Messaging with delay, deferral and retry over any broker.
#![forbid(unsafe_code)]

pub mod config;
