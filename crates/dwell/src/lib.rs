//! Delayed delivery, deferral and retry of messages, with the same behaviour on every supported
//! broker.
//!
//! A message is a struct and a handler is a function. A [`Bus`] connects them: within this process
//! with the URL `memory://`, or through a broker with the URL of that broker.
//!
//! ```
//! use dwell::prelude::*;
//! use std::time::Duration;
//!
//! #[derive(Command, Serialize, Deserialize)]
//! #[message(name = "greet")]
//! struct Greet {
//!     name: String,
//! }
//!
//! async fn greet(message: Greet) -> Result<(), Failure> {
//!     println!("Hello, {}!", message.name);
//!     Ok(())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), dwell::Error> {
//!     let bus = Bus::builder().handle(greet).start("memory://").await?;
//!     bus.send(Greet { name: "Alice".into() }).await?;
//!     bus.send(Greet { name: "Bob".into() }).after(Duration::from_millis(50)).await?;
//!     bus.run_until(tokio::time::sleep(Duration::from_millis(200))).await
//! }
//! ```
//!
//! The return value of a handler determines what happens to its message:
//!
//! * `()` or `Ok` completes it.
//! * An error, a panic or a timeout retries it with backoff. After the last retry, it becomes a
//!   dead letter.
//! * A [`Failure`] that the handler constructs defers, rejects or releases it.
//!
//! Steps around a handler ([`Pipeline`], or attributes below `#[handler]`) change this for whole
//! classes of errors.
//!
//! | feature of `dwell` | adds |
//! |---|---|
//! | `sqlite` | the transport `sqlite://`: durable, in one file, without a server; needs a C compiler |
//! | `redis` | the transport `redis://` and `rediss://` |
//! | `kafka` | the transport `kafka://`; needs a C++ compiler, make, and OpenSSL with its headers |
//! | `axum` | HTTP endpoints for jobs, as an `axum` router |
//! | `metrics` | metrics for Prometheus |
//! | `otel` | traces for OpenTelemetry |
#![forbid(unsafe_code)]

#[cfg(feature = "axum")]
pub mod axum;
mod builder;
mod bus;
mod codec;
pub mod config;
mod connect;
mod cx;
mod dispatch;
mod extract;
mod failure;
#[cfg(doctest)]
mod guide;
mod handler;
pub mod jobs;
mod message;
mod observers;
mod pipeline;
mod registry;
mod route;
mod sending;
mod subscription;
pub mod telemetry;
pub mod testing;
mod trace;
mod work;

pub use builder::Builder;
pub use bus::{Bus, Cancel, Reschedule};
pub use codec::{Codec, Json};
pub use config::Config;
pub use cx::Cx;
pub use dwell_core::{Error, ErrorKind, OnConflict, Result, Timestamp};
pub use dwell_engine::Monitor;
pub use dwell_macros::{
    Command, Event, circuit_breaker, defer_on_error, handler, inbox, rate_limit, reject_on_error,
    release_on_error, retry, retry_inline, timeout,
};
pub use extract::{FromCx, State};
pub use failure::{Ending, Failure};
pub use handler::IntoHandler;
pub use message::{Command, Event, Message};
pub use pipeline::{Next, Pipeline, Step, steps};
pub use sending::{Departing, Sending, Sent};
pub use subscription::Subscription;
pub use trace::TraceContext;

/// Untyped messages, and the types of queries and records.
///
/// ```
/// use dwell::{prelude::*, raw::{Address, Message, Query, State}};
/// use std::time::Duration;
///
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.unpaid", topic = "orders")]
/// # struct OrderUnpaid { order: u64 }
/// # async fn remind(_: OrderUnpaid) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let bus = Bus::builder().subscribe("reminder", remind).start("memory://").await?;
/// let message = Message::new("reminder-42", "orders.unpaid", r#"{"order":42}"#);
/// bus.post(Address::topic("orders"), message).after(Duration::from_secs(900)).await?;
/// assert_eq!(bus.pending(Query::default()).await?[0].envelope.to, Address::topic("orders"));
/// assert_eq!(bus.get("reminder-42").await?[0].state, State::Scheduled);
/// # bus.shutdown().await }
/// ```
pub mod raw {
    pub use dwell_core::{
        Address, Attempts, BoxError, Change, Changed, ContentType, Count, Due, Headers, Message, MessageId,
        Pending, Query, Record, RecordQuery, State, TypeName,
    };
    pub use dwell_engine::{Seen, Stage, Tally};
}

/// Extension points: transport, clock, inbox and observer.
///
/// ```
/// use dwell::{Bus, extend::{Clock, Seams, VirtualClock}};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let clock = VirtualClock::new();
/// let bus = Bus::builder().seams(Seams::virtual_time(clock.clone(), 42)).start("memory://").await?;
/// clock.advance(Duration::from_secs(3600)).await;
/// assert_eq!(clock.elapsed(), Duration::from_secs(3600));
/// # bus.shutdown().await }
/// ```
pub mod extend {
    pub use dwell_core::{
        Clock, Ids, Inbox, Random, Seams, SeededRandom, SystemClock, Transport, VirtualClock,
    };
    pub use dwell_engine::{Decided, Observer, Ran};
}

/// The settings of a subscription, and their types.
///
/// ```
/// use dwell::{prelude::*, settings::{DeadLetter, MaxRuns, RetryPolicy}};
/// use std::time::Duration;
///
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// # async fn confirm(_: OrderPlaced) {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// let policy = RetryPolicy {
///     max_retries: 20,
///     max_delay: Duration::from_secs(3600),
///     ..RetryPolicy::default()
/// };
/// let mail = Subscription::named("mail")
///     .retry(policy)
///     .max_runs(MaxRuns::Limited(100))
///     .with(|settings| settings.dead_letter = DeadLetter::Topic("graveyard.dlq".into()));
/// let bus = Bus::builder().subscribe(mail, confirm).start("memory://").await?;
/// # bus.shutdown().await }
/// ```
pub mod settings {
    pub use dwell_core::{OnMissing, RetryOverride, RetryPolicy};
    pub use dwell_engine::{DeadLetter, DelayMode, MaxRuns, OnUnknown, SubscriptionSettings};
}

/// Checks of the parts of a function with `#[handler]`, one for each part.
#[doc(hidden)]
pub mod parts {
    pub fn message<T: crate::Message>() {}
    pub fn asked_for<T: crate::FromCx>() {}
    pub fn returned<T: crate::Ending>() {}
    pub fn future<T: Send>(_: T) {}
}

/// The names that most programs import.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "greet")]
/// struct Greet { name: String }
///
/// #[handler]
/// #[timeout("10s")]
/// async fn greet(message: Greet, cx: Cx) -> Result<(), Failure> {
///     println!("Hello, {}, in run {}!", message.name, cx.attempt());
///     Ok(())
/// }
///
/// let wiring = Bus::builder().handle(greet);
/// assert_eq!(Greet::NAME, "greet");
/// ```
///
/// The prelude exports no `Context`, `Result` or `Error`, because many programs define these names.
pub mod prelude {
    pub use crate::{
        Builder, Bus, Cancel, Command, Cx, Event, Failure, Message as _, OnConflict, Pipeline, Reschedule,
        State, Step, Subscription, circuit_breaker, defer_on_error, handler, inbox, rate_limit,
        reject_on_error, release_on_error, retry, retry_inline, timeout,
    };
    pub use serde::{Deserialize, Serialize};
}
