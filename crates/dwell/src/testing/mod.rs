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

use crate::{Builder, Bus, Message, codec::decode, connect};
use dwell_core::{Error, ErrorKind, Outcome, Query, Result, Seams, Timestamp, VirtualClock};
use std::{ops::Deref, sync::Arc, time::Duration};

/// A started bus on virtual time. It is a [`Bus`], and knows what became of every message.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
/// # #[message(name = "parcels.track")]
/// # struct Track { parcel: u32 }
/// async fn track(track: Track, cx: Cx) -> Result<(), Failure> {
///     match (track.parcel, cx.attempt()) {
///         (0, _) => Err(Failure::reject("there is no parcel 0")),
///         (_, 1) => Err(Failure::defer()),
///         (_, 2) => Err("the service is away".into()),
///         _ => Ok(()),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let t = dwell::testing::start(Bus::builder().handle(track)).await?;
/// t.send(Track { parcel: 0 }).await?;
/// t.send(Track { parcel: 1 }).await?;
/// t.advance(Duration::from_secs(60)).await;
/// assert_eq!((t.dead::<Track>(), t.deferred::<Track>(), t.failed::<Track>(), t.handled::<Track>()), (1, 1, 1, 1));
/// assert_eq!(t.sent::<Track>(), [Track { parcel: 0 }, Track { parcel: 1 }]);
/// assert_eq!(t.errors::<Track>(), ["there is no parcel 0", "the service is away"]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct TestBus {
    bus: Bus,
    clock: VirtualClock,
    records: Arc<Records>,
}

/// Starts it, on `memory://` and virtual time. Use it in a `#[tokio::test]`, which has one thread.
///
/// A wiring that is [inline](crate::Builder::inline) is not so here: a send returns at once, and the test says how far to go,
/// with [`run_until_idle`](TestBus::run_until_idle) or [`advance`](TestBus::advance).
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "greet")]
/// # struct Greet;
/// async fn greet(_: Greet) {}
///
/// /// The same for the program and its tests.
/// fn wiring() -> dwell::Builder {
///     Bus::builder().handle(greet)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let t = dwell::testing::start(wiring()).await?;
/// t.send(Greet).await?;
/// t.run_until_idle().await;
/// assert_eq!(t.handled::<Greet>(), 1);
/// # Ok(()) }
/// ```
pub async fn start(wiring: Builder) -> Result<TestBus> {
    start_on(wiring, "memory://").await
}

/// The same on another transport that lives in this process, such as `sqlite://:memory:`. A server has a clock of its own, which
/// no test can turn: its URL is refused, and so is a wiring whose store is one, unless the test gives it another.
///
/// ```
/// # use dwell::{ErrorKind, prelude::*};
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "greet")]
/// # struct Greet;
/// # async fn greet(_: Greet) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let t = dwell::testing::start_on(Bus::builder().handle(greet), "memory://?capacity=1").await?;
/// t.send(Greet).after(Duration::from_secs(60)).await?;
/// let refused = t.send(Greet).after(Duration::from_secs(60)).await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Full);
///
/// # fn wiring() -> dwell::Builder { Bus::builder().scheduler("redis://localhost") }
/// assert!(dwell::testing::start(wiring()).await.is_err(), "it waits in `redis://`");
/// let t = dwell::testing::start(wiring().scheduler("memory://")).await?;
/// # Ok(()) }
/// ```
pub async fn start_on(wiring: Builder, url: &str) -> Result<TestBus> {
    if let Some(scheme) = connect::server(url) {
        let text = format!(
            "a test on virtual time needs a transport in this process, and `{scheme}://` is a server with a clock of its \
             own: use `memory://` or `sqlite://`"
        );
        return Err(Error::new(ErrorKind::Config, text));
    }
    if let Some(scheme) = wiring.store_url().and_then(connect::server) {
        let text = format!(
            "a test on virtual time needs a store in this process, and `{scheme}://`, by `.scheduler(…)` or \
             `[scheduler] url`, is a server with a clock of its own: end the wiring with `.scheduler(\"memory://\")` in \
             the test"
        );
        return Err(Error::new(ErrorKind::Config, text));
    }
    let clock = VirtualClock::new();
    let records = Arc::new(Records::default());
    let seams = Seams::virtual_time(clock.clone(), 1);
    // Time stands still until the test says so: an inline send would wait for ever for a handler that waits for the clock.
    let bus = wiring.not_inline().seams(seams).observer(records.clone()).start(url).await?;
    Ok(TestBus { bus, clock, records })
}

/// A message that waits.
///
/// ```
/// # use dwell::{prelude::*, testing::Waiting};
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
/// # #[message(name = "remind")]
/// # struct Remind { order: u64 }
/// # async fn remind(_: Remind) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
/// let hour = Duration::from_secs(3600);
/// t.send(Remind { order: 42 }).after(hour).await?;
/// assert_eq!(t.pending().await?, [Waiting { message: Remind { order: 42 }, due: t.now().after(hour) }]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<M> {
    /// What waits.
    pub message: M,
    /// When it is due.
    pub due: Timestamp,
}

impl TestBus {
    /// Completes when all that is due now has been handled. A handler that waits for the clock is left waiting.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// # async fn greet(_: Greet) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(greet)).await?;
    /// t.send(Greet).await?;
    /// t.send(Greet).after(Duration::from_secs(1)).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<Greet>(), 1, "the other is not due");
    /// # Ok(()) }
    /// ```
    pub async fn run_until_idle(&self) {
        self.clock.idle().await;
    }

    /// Lets this much time pass: everything on the way happens at its own time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// async fn greet(_: Greet, cx: Cx) -> Result<(), Failure> {
    ///     Err(Failure::defer().after(Duration::from_secs(24 * 3600))) // every day
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(greet)).await?;
    /// let start = t.now();
    /// t.send(Greet).await?;
    /// t.advance(Duration::from_secs(365 * 24 * 3600)).await;
    /// assert_eq!(t.deferred::<Greet>(), 366);
    /// assert_eq!(t.now().since(start).as_secs(), 365 * 24 * 3600);
    /// # Ok(()) }
    /// ```
    pub async fn advance(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    /// The time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// let sent = t.send(Track { parcel: 1 }).after(Duration::from_secs(60)).await?;
    /// assert_eq!(sent.due, Some(t.now().after(Duration::from_secs(60))));
    /// # Ok(()) }
    /// ```
    pub fn now(&self) -> Timestamp {
        dwell_core::Clock::now(&self.clock)
    }

    /// The clock, to step it or to wait on.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "greet")]
    /// # struct Greet;
    /// # async fn greet(_: Greet) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(greet)).await?;
    /// t.send(Greet).after(Duration::from_secs(5)).await?;
    /// t.clock().step_wall(3_600_000); // somebody sets the clock forward by an hour
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<Greet>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// How many runs of a handler of this type succeeded, over all subscriptions.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// assert_eq!(t.handled::<Track>(), 0);
    /// t.run_until_idle().await;
    /// assert_eq!(t.handled::<Track>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn handled<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Handled)
    }

    /// How many failed, to be tried again.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) -> Result<(), &'static str> { Err("the service is away") }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// t.run_until_idle().await;
    /// assert_eq!((t.failed::<Track>(), t.dead::<Track>()), (1, 0));
    /// # Ok(()) }
    /// ```
    pub fn failed<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Failed)
    }

    /// How many were deferred.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) -> Result<(), Failure> { Err(Failure::defer().after(Duration::from_secs(60))) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// t.advance(Duration::from_secs(60)).await;
    /// assert_eq!(t.deferred::<Track>(), 2);
    /// # Ok(()) }
    /// ```
    pub fn deferred<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |outcome, _| outcome == Outcome::Deferred)
    }

    /// How many were given up for good.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) -> Result<(), Failure> { Err(Failure::reject("there is no such parcel")) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.dead::<Track>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn dead<M: Message>(&self) -> usize {
        self.records.count(M::NAME, |_, dead| dead)
    }

    /// What was sent or published of this type, in order, by the test and by handlers.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// assert_eq!(t.sent::<Track>(), [Track { parcel: 1 }]);
    /// # Ok(()) }
    /// ```
    pub fn sent<M: Message>(&self) -> Vec<M> {
        self.records.sent(M::NAME).iter().filter_map(read).collect()
    }

    /// What waits of this type, in order of due time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind { order: u64 }
    /// # async fn remind(_: Remind) {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// t.send(Remind { order: 2 }).after(Duration::from_secs(200)).await?;
    /// t.send(Remind { order: 1 }).after(Duration::from_secs(100)).await?;
    /// let orders: Vec<_> = t.pending::<Remind>().await?.iter().map(|waiting| waiting.message.order).collect();
    /// assert_eq!(orders, [1, 2]);
    /// # Ok(()) }
    /// ```
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
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "parcels.track")]
    /// # struct Track { parcel: u32 }
    /// # async fn track(_: Track) -> Result<(), Failure> { Err(Failure::reject("there is no such parcel")) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(track)).await?;
    /// t.send(Track { parcel: 1 }).await?;
    /// t.run_until_idle().await;
    /// assert_eq!(t.errors::<Track>(), ["there is no such parcel"]);
    /// # Ok(()) }
    /// ```
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
