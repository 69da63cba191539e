//! Dwell on Apache Kafka.
#![forbid(unsafe_code)]
