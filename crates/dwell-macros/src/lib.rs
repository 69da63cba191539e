//! The derive and attribute macros of Dwell. Use them through the crate `dwell`, which exports all
//! of them.
//!
//! * [`Command`] and [`Event`] make a type a message: they define its name on the wire and its
//!   topic.
//! * [`macro@handler`] adds steps to a handler: [`macro@defer_on_error`],
//!   [`macro@reject_on_error`], [`macro@release_on_error`], [`macro@retry`],
//!   [`macro@retry_inline`], [`macro@timeout`], [`macro@circuit_breaker`], [`macro@rate_limit`] and
//!   [`macro@inbox`]. Without steps, a function is a handler without the attribute.
//!
//! The macros make no decisions at run time. You can write the generated code yourself, with
//! `dwell::Message` and `dwell::Pipeline`. Names, durations and numbers are checked at compile
//! time.
#![forbid(unsafe_code)]

mod handler;
mod message;
mod settings;
mod steps;
mod value;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Makes a type a command, which is sent with `send` to its single handler.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "payments.charge", topic = "payments")]
/// struct Charge {
///     order: u64,
///     cents: u64,
/// }
///
/// assert_eq!((Charge::NAME, Charge::TOPIC), ("payments.charge", "payments"));
/// ```
///
/// # Settings
///
/// `#[message(…)]` on the type accepts these settings:
///
/// * `name`: the name of the type on the wire. Other programs and stored messages refer to it, so a
///   changed name is another type. The default is the name of the package and of the type:
///   `OrderPlaced` in the package `shop` is `shop.order_placed`. Modules are not part of it, so you
///   can move a type to another file. If you rename a type or move it to another package, set its
///   old name. In the package part, characters that a name cannot contain are replaced by `_`. The
///   packages `dwell` and `job` become `dwell_` and `job_`, because their names are reserved.
/// * `topic`: the topic. The default is the name of the message.
/// * `codec`: the type that encodes and decodes the payload. The default is `dwell::Json`.
///
/// A name or topic has 1 to 120 of the characters `A-Z a-z 0-9 _ . -`. Those that start with
/// `dwell.` or `job.`, or end in `.dlq` or `.invalid`, are reserved.
///
/// The type is a struct or an enum without generic parameters, and has to implement `Serialize` and
/// `Deserialize`.
#[proc_macro_derive(Command, attributes(message))]
pub fn command(item: TokenStream) -> TokenStream {
    derive(message::Kind::Command, &parse_macro_input!(item as DeriveInput))
}

/// Makes a type an event, which is published with `publish` to all of its subscriptions.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "shop.order_placed")]
/// struct OrderPlaced {
///     order: u64,
/// }
///
/// assert_eq!((OrderPlaced::NAME, OrderPlaced::TOPIC), ("shop.order_placed", "shop.order_placed"));
/// ```
///
/// The settings are those of [`Command`].
#[proc_macro_derive(Event, attributes(message))]
pub fn event(item: TokenStream) -> TokenStream {
    derive(message::Kind::Event, &parse_macro_input!(item as DeriveInput))
}

fn derive(kind: message::Kind, input: &DeriveInput) -> TokenStream {
    let package = std::env::var("CARGO_PKG_NAME").ok();
    message::expand(kind, input, package.as_deref()).unwrap_or_else(Error::into_compile_error).into()
}

/// Adds steps to a handler: the attributes below this one, of which the first is the outermost.
///
/// ```
/// use dwell::{Event, State, handler};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Event, Serialize, Deserialize)]
/// struct OrderPlaced {
///     order: u64,
/// }
///
/// #[derive(Clone)]
/// struct Mail;
///
/// impl Mail {
///     async fn confirm(&self, order: u64) -> Result<(), std::io::Error> {
///         println!("order {order} is confirmed");
///         Ok(())
///     }
/// }
///
/// /// Sends a confirmation to the customer.
/// #[handler]
/// #[retry(max_retries = 20, base_delay = "1s", max_delay = "1h")]
/// #[timeout("10s")]
/// async fn confirm(message: OrderPlaced, State(mail): State<Mail>) -> Result<(), std::io::Error> {
///     mail.confirm(message.order).await
/// }
/// ```
///
/// The function is `async` or blocking. Its first parameter is the message, by value. The other
/// parameters are extractors.
///
/// Pass `confirm` to `subscribe` or `handle`. `confirm::call(…)` is the plain function, for example
/// for a test. Both have the visibility of the function. Other attributes stay on the plain
/// function.
///
/// # Order
///
/// The steps are written *below* `#[handler]`. Each can be used once. Each also accepts `step = n`
/// with a whole number. The step with the lowest number is then the outermost, whatever the order
/// of the attributes is. Either all steps of a handler have a number, or none.
///
/// ```
/// # use dwell::{Event, handler};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Event, Serialize, Deserialize)]
/// # struct OrderPlaced;
/// #[handler]
/// #[timeout("10s", step = 2)]
/// #[inbox(step = 1)]
/// fn count(_: OrderPlaced) {}
/// ```
#[proc_macro_attribute]
pub fn handler(settings: TokenStream, item: TokenStream) -> TokenStream {
    handler::expand(settings.into(), item.into()).into()
}

/// A step of a [`macro@handler`]: an error defers the message, which uses up no retry.
///
/// `#[defer_on_error]` uses the delay of the subscription. `#[defer_on_error("30s")]` and
/// `#[defer_on_error(delay = "30s")]` set the delay. `"0s"` means no delay.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// #[handler]
/// #[defer_on_error("30s")]
/// async fn confirm(_: OrderPlaced) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("the mail server is unavailable"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
/// # t.publish(OrderPlaced).await?;
/// t.advance(Duration::from_secs(60)).await;
/// assert_eq!((t.deferred::<OrderPlaced>(), t.failed::<OrderPlaced>()), (3, 0));
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn defer_on_error(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("defer_on_error", item)
}

/// A step of a [`macro@handler`]: an error rejects the message, which goes to the dead letters
/// immediately.
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "payments.charge")]
/// # struct Charge;
/// #[handler]
/// #[reject_on_error]
/// async fn charge(_: Charge) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("no answer: the payment may have succeeded or not"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
/// # t.send(Charge).await?;
/// # t.run_until_idle().await;
/// assert_eq!(t.dead::<Charge>(), 1, "for a person to check");
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn reject_on_error(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("reject_on_error", item)
}

/// A step of a [`macro@handler`]: an error releases the message, for the next worker that receives
/// it.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "print")]
/// # struct Print;
/// #[handler]
/// #[release_on_error]
/// fn print(_: Print) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("this printer has no paper"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(print)).await?;
/// # t.send(Print).await?;
/// # t.advance(Duration::from_secs(60)).await;
/// assert_eq!((t.failed::<Print>(), t.dead::<Print>()), (0, 0));
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn release_on_error(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("release_on_error", item)
}

/// A step of a [`macro@handler`]: the retry policy for failed messages, which the broker delays.
///
/// `#[retry(max_retries = 20, base_delay = "1s", max_delay = "1h", jitter = 0.15)]`, or some of
/// these. The subscription's settings are used for the others. The delay starts at `base_delay`,
/// doubles up to `max_delay`, and varies at random by up to the fraction `jitter`.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// #[handler]
/// #[retry(max_retries = 20, base_delay = "1s", max_delay = "1h")]
/// async fn confirm(_: OrderPlaced) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("the mail server is unavailable"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
/// # t.publish(OrderPlaced).await?;
/// t.advance(Duration::from_secs(24 * 3600)).await;
/// assert_eq!((t.failed::<OrderPlaced>(), t.dead::<OrderPlaced>()), (20, 1));
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn retry(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("retry", item)
}

/// A step of a [`macro@handler`]: retries the inner part inline, while the message is leased.
///
/// `#[retry_inline(max_retries = 3, base_delay = "100ms", max_delay = "1s")]`, or some of these.
/// Use it for errors that last only a moment, and [`macro@retry`] for all others, because it
/// occupies no worker.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::{sync::{Arc, atomic::{AtomicU32, Ordering}}, time::Duration};
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "rows.update")]
/// # struct Update;
/// #[handler]
/// #[retry_inline(max_retries = 3, base_delay = "100ms")]
/// async fn update(_: Update, State(tries): State<Arc<AtomicU32>>) -> Result<(), std::io::Error> {
///     match tries.fetch_add(1, Ordering::Relaxed) {
///         0 | 1 => Err(std::io::Error::other("the row is locked")),
///         _ => Ok(()),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().state(Arc::new(AtomicU32::new(0))).handle(update)).await?;
/// # t.send(Update).await?;
/// t.advance(Duration::from_millis(300)).await;
/// assert_eq!((t.handled::<Update>(), t.failed::<Update>()), (1, 0));
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn retry_inline(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("retry_inline", item)
}

/// A step of a [`macro@handler`]: the inner part fails if it takes longer than this.
///
/// `#[timeout("10s")]` or `#[timeout(after = "10s")]`.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// #[handler]
/// #[timeout("10s")]
/// async fn confirm(_: OrderPlaced, cx: Cx) {
///     cx.clock().sleep(Duration::from_secs(25)).await;
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
/// # t.publish(OrderPlaced).await?;
/// t.advance(Duration::from_secs(10)).await;
/// assert_eq!(t.failed::<OrderPlaced>(), 1);
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn timeout(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("timeout", item)
}

/// A step of a [`macro@handler`]: after a number of consecutive failures, messages are deferred
/// without a run for a while.
///
/// `#[circuit_breaker(failures = 5, open_for = "30s")]`, or some of these.
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// #[handler]
/// #[circuit_breaker(failures = 2, open_for = "1m")]
/// async fn confirm(_: OrderPlaced) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("the mail server is unavailable"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
/// # for _ in 0..5 { t.publish(OrderPlaced).await?; }
/// # t.run_until_idle().await;
/// assert_eq!((t.failed::<OrderPlaced>(), t.deferred::<OrderPlaced>()), (2, 3), "of five");
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn circuit_breaker(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("circuit_breaker", item)
}

/// A step of a [`macro@handler`]: limits how often the inner part runs.
///
/// `#[rate_limit(per_second = 10, burst = 5)]`. `per_second` may be a fraction, and `burst` is
/// optional.
///
/// ```
/// # use dwell::prelude::*;
/// # use std::time::Duration;
/// # #[derive(Event, Serialize, Deserialize)]
/// # #[message(name = "orders.placed")]
/// # struct OrderPlaced;
/// #[handler]
/// #[rate_limit(per_second = 0.5)]
/// async fn confirm(_: OrderPlaced) {}
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
/// # for _ in 0..10 { t.publish(OrderPlaced).await?; }
/// t.advance(Duration::from_secs(9)).await;
/// assert_eq!(t.handled::<OrderPlaced>(), 5, "of ten");
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn rate_limit(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("rate_limit", item)
}

/// A step of a [`macro@handler`]: a message that was handled before is not handled again.
///
/// `#[inbox]`, or `#[inbox(keep = "7d")]` to set how long a message is remembered.
///
/// ```
/// # use dwell::{prelude::*, raw::{Address, Message}};
/// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "payments.charge")]
/// # struct Charge;
/// #[handler]
/// #[inbox(keep = "7d")]
/// async fn charge(_: Charge, State(charged): State<Arc<AtomicU32>>) {
///     charged.fetch_add(1, Ordering::Relaxed);
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let charged = Arc::new(AtomicU32::new(0));
/// # let t = dwell::testing::start(Bus::builder().state(charged.clone()).handle(charge)).await?;
/// for _ in 0..2 {
///     t.post(Address::topic("payments.charge"), Message::new("charge-42", "payments.charge", "null")).await?;
/// }
/// t.run_until_idle().await;
/// assert_eq!(charged.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn inbox(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("inbox", item)
}

/// Returns the error for a step attribute that is expanded, because no `#[handler]` above has
/// removed it.
fn misplaced(name: &str, item: TokenStream) -> TokenStream {
    let mut tokens = TokenStream::from(steps::misplaced(name).into_compile_error());
    tokens.extend(item);
    tokens
}

/// Combines all errors. Each keeps its own location.
fn all(problems: impl IntoIterator<Item = Error>) -> syn::Result<()> {
    let combined = problems.into_iter().reduce(|mut all, problem| {
        all.combine(problem);
        all
    });
    combined.map_or(Ok(()), Err)
}
