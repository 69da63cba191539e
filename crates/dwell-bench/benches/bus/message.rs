//! The messages of all cases, and the counter of handled messages.

use dwell::prelude::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// A message of 100 bytes in JSON.
#[derive(Event, Serialize, Deserialize)]
#[message(name = "bench.placed")]
pub(crate) struct Placed {
    order: u64,
    cents: u32,
    customer: String,
}

impl Placed {
    pub(crate) fn new(number: usize) -> Self {
        Self { order: 1_000_000_000 + number as u64, cents: 19_999, customer: "c".repeat(52) }
    }
}

/// The same content as a command.
#[derive(Command, Serialize, Deserialize)]
#[message(name = "bench.place")]
pub(crate) struct Place {
    order: u64,
    cents: u32,
    customer: String,
}

impl Place {
    pub(crate) fn new(number: usize) -> Self {
        let Placed { order, cents, customer } = Placed::new(number);
        Self { order, cents, customer }
    }
}

/// Counts down to the last message.
#[derive(Clone)]
pub(crate) struct Left(Arc<(AtomicUsize, Notify)>);

impl Left {
    pub(crate) fn new(messages: usize) -> Self {
        Self(Arc::new((AtomicUsize::new(messages), Notify::new())))
    }

    /// Counts one handled message.
    pub(crate) fn handled(&self) {
        if self.0.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.1.notify_one();
        }
    }

    /// Completes when all messages are handled.
    pub(crate) async fn none(&self) {
        self.0.1.notified().await;
    }
}

/// Publishes until the bounded queue accepts the message.
pub(crate) async fn publish(bus: &Bus, number: usize) {
    while let Err(error) = bus.publish(Placed::new(number)).await {
        assert_eq!(error.kind(), dwell::ErrorKind::Full, "{error}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
