//! Tests of handlers and of flows, on virtual time, through the same code that runs in production.
//!
//! A handler is a function: a test calls it, with [`cx`] as its context. A flow of messages is tested with [`start`]:
//!
//! ```
//! use dwell::prelude::*;
//! use std::time::Duration;
//!
//! #[derive(Event, Serialize, Deserialize)]
//! #[message(name = "orders.unpaid")]
//! struct OrderUnpaid { order: u64 }
//!
//! async fn remind(unpaid: OrderUnpaid) -> Result<(), Failure> { Ok(()) }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
//! let t = dwell::testing::start(Bus::builder().subscribe("reminder", remind)).await?;
//! t.publish(OrderUnpaid { order: 42 }).after(Duration::from_secs(5 * 24 * 3600)).await?;
//! t.advance(Duration::from_secs(5 * 24 * 3600)).await;
//! assert_eq!(t.handled::<OrderUnpaid>(), 1);
//! # Ok(()) }
//! ```

mod one;
mod records;

pub(crate) use one::Outgoing;
pub use one::{TestCx, cx};
use records::Records;

use crate::{Builder, Bus, Message, codec::decode};
use dwell_core::{Outcome, Query, Result, Seams, Timestamp, VirtualClock};
use std::{ops::Deref, sync::Arc, time::Duration};

/// A started bus on virtual time. It is a [`Bus`], and knows what became of every message.
#[derive(Debug)]
pub struct TestBus {
    bus: Bus,
    clock: VirtualClock,
    records: Arc<Records>,
}

/// Starts it, on `memory://` and virtual time. Use it in a `#[tokio::test]`, which has one thread.
pub async fn start(wiring: Builder) -> Result<TestBus> {
    start_on(wiring, "memory://").await
}

/// The same on another transport that lives in this process, such as `sqlite://:memory:`.
pub async fn start_on(wiring: Builder, url: &str) -> Result<TestBus> {
    let clock = VirtualClock::new();
    let records = Arc::new(Records::default());
    let seams = Seams::virtual_time(clock.clone(), 1);
    let bus = wiring.seams(seams).observer(records.clone()).start(url).await?;
    Ok(TestBus { bus, clock, records })
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<M> {
    /// What waits.
    pub message: M,
    /// When it is due.
    pub due: Timestamp,
}

impl TestBus {
    /// Completes when all that is due now has been handled. A handler that waits for the clock is left waiting.
    pub async fn run_until_idle(&self) {
        self.clock.idle().await;
    }

    /// Lets this much time pass: everything on the way happens at its own time.
    pub async fn advance(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        dwell_core::Clock::now(&self.clock)
    }

    /// The clock, to step it or to wait on.
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// How many runs of a handler of this type succeeded, over all subscriptions.
    pub fn handled<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Handled)
    }

    /// How many failed, to be tried again.
    pub fn failed<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Failed)
    }

    /// How many were deferred.
    pub fn deferred<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Deferred)
    }

    /// How many were given up for good.
    pub fn dead<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |_, dead| dead)
    }

    /// What was sent or published of this type, in order, by the test and by handlers.
    pub fn sent<M: Message>(&self) -> Vec<M> {
        self.records.sent(M::NAME).iter().filter_map(read).collect()
    }

    /// What waits of this type, in order of due time.
    pub async fn pending<M: Message>(&self) -> Result<Vec<Waiting<M>>> {
        let query = Query { limit: usize::MAX, ..Query::default() };
        let pending = self.bus.pending(query).await?.into_iter();
        let of_type = pending.filter(|pending| *pending.envelope.message.kind == *M::NAME);
        Ok(of_type
            .filter_map(|pending| {
                Some(Waiting { message: read(&pending.envelope.message)?, due: pending.due })
            })
            .collect())
    }

    /// Why messages of this type failed, were deferred or given up, in order.
    pub fn errors<M: Message>(&self) -> Vec<String> {
        self.records.errors(M::NAME)
    }
}

fn read<M: Message>(message: &dwell_core::Message) -> Option<M> {
    decode::<M::Codec, M>(&message.content_type, &message.body).ok()
}

impl Deref for TestBus {
    type Target = Bus;

    fn deref(&self) -> &Bus {
        &self.bus
    }
}
