//! What Dwell derives and generates. Use it through the crate `dwell`, which exports all of it.
//!
//! * [`Command`] and [`Event`] make a type a message: they give it its name on the wire and its topic.
//! * [`macro@handler`] puts steps around a handler: [`macro@defer_on_error`], [`macro@reject_on_error`],
//!   [`macro@release_on_error`], [`macro@retry`], [`macro@retry_inline`], [`macro@timeout`], [`macro@circuit_breaker`],
//!   [`macro@rate_limit`] and [`macro@inbox`]. Without steps, a function is a handler as it is.
//!
//! Nothing here decides anything at run time: what is generated can be written by hand, with `dwell::Message` and
//! `dwell::Pipeline`. Names, durations and numbers are checked while compiling.
#![forbid(unsafe_code)]

mod handler;
mod message;
mod settings;
mod steps;
mod value;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Makes a type a command: sent to the one place where it is handled, by `send`.
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
/// `#[message(…)]` on the type takes
///
/// * `name`: what the type is called on the wire. Others read it, and messages that wait carry it: to change it is to
///   send another type. Without it, the name is the package's and the type's: `OrderPlaced` in the package `shop` is
///   `shop.order_placed`. Modules are not in it, so a type keeps its name when it moves to another file; when it is
///   renamed, or moves to another package, give it its old name. What a name cannot contain is `_` in the package's
///   part, and the packages `dwell` and `job` are `dwell_` and `job_` there, since their names are reserved.
/// * `topic`: where it is sent. Without it, a topic of its own, called like the message.
/// * `codec`: the type that writes and reads the payload. Without it, `dwell::Json`.
///
/// A name or topic is 1 to 120 of the characters `A-Z a-z 0-9 _ . -`. Those that start with `dwell.` or `job.`, or end
/// in `.dlq` or `.invalid`, are reserved.
///
/// The type is a struct or an enum without parameters, and is `Serialize` and `Deserialize` as well.
#[proc_macro_derive(Command, attributes(message))]
pub fn command(item: TokenStream) -> TokenStream {
    derive(message::Kind::Command, &parse_macro_input!(item as DeriveInput))
}

/// Makes a type an event: published to all who subscribe to it, by `publish`.
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

/// Puts steps around a handler: the attributes below it, of which the first is the outermost.
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
/// /// Tells the customer that we have the order.
/// #[handler]
/// #[retry(max_retries = 20, base_delay = "1s", max_delay = "1h")]
/// #[timeout("10s")]
/// async fn confirm(message: OrderPlaced, State(mail): State<Mail>) -> Result<(), std::io::Error> {
///     mail.confirm(message.order).await
/// }
/// ```
///
/// The function is `async`, or blocks. Its first parameter is the message, by value; what else it needs comes by
/// extractors. `confirm` is then to be given to `subscribe` or `handle`, and `confirm::call(…)` is the plain function,
/// as for a test. Both are as visible as the function was. Other attributes stay with the plain function.
///
/// # Order
///
/// The steps stand *below* `#[handler]`. Each can be there once. Each takes `step = n` too, a whole number: then the
/// lowest is the outermost, however they are written. Numbers are on all the steps of a handler, or on none.
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
/// `#[defer_on_error]` waits as long as the subscription says, `#[defer_on_error("30s")]` or
/// `#[defer_on_error(delay = "30s")]` as long as it says itself, and `"0s"` not at all.
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
///     Err(std::io::Error::other("the mail server is away"))
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

/// A step of a [`macro@handler`]: an error rejects the message, which goes to the dead letters at once.
///
/// ```
/// # use dwell::prelude::*;
/// # #[derive(Command, Serialize, Deserialize)]
/// # #[message(name = "payments.charge")]
/// # struct Charge;
/// #[handler]
/// #[reject_on_error]
/// async fn charge(_: Charge) -> Result<(), std::io::Error> {
///     Err(std::io::Error::other("no answer: the money may be gone, or not"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
/// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
/// # t.send(Charge).await?;
/// # t.run_until_idle().await;
/// assert_eq!(t.dead::<Charge>(), 1, "for a person to look at");
/// # Ok(()) }
/// ```
#[proc_macro_attribute]
pub fn reject_on_error(_: TokenStream, item: TokenStream) -> TokenStream {
    misplaced("reject_on_error", item)
}

/// A step of a [`macro@handler`]: an error releases the message, for whoever asks next.
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
///     Err(std::io::Error::other("this printer has no paper: another may have"))
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

/// A step of a [`macro@handler`]: how often and when a failed message is tried again, by the broker.
///
/// `#[retry(max_retries = 20, base_delay = "1s", max_delay = "1h", jitter = 0.15)]`, or some of these: what is not set
/// is the subscription's. The delay starts at `base_delay`, doubles up to `max_delay`, and differs by up to the share
/// `jitter` at random.
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
///     Err(std::io::Error::other("the mail server is away"))
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

/// A step of a [`macro@handler`]: what is inside is tried again at once, while the message is held.
///
/// `#[retry_inline(max_retries = 3, base_delay = "100ms", max_delay = "1s")]`, or some of these. It is meant for what is
/// over in a moment; for all else there is [`macro@retry`], which holds nothing.
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

/// A step of a [`macro@handler`]: what is inside may take this long, and has failed after it.
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

/// A step of a [`macro@handler`]: after so many failures in a row, nothing is tried for a while.
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
///     Err(std::io::Error::other("the mail server is away"))
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

/// A step of a [`macro@handler`]: what is inside runs at most this often.
///
/// `#[rate_limit(per_second = 10, burst = 5)]`; `per_second` may be a fraction, and `burst` be left out.
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
/// `#[inbox]`, or `#[inbox(keep = "7d")]` to say how long a message is remembered.
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

/// A step attribute that is expanded has no `#[handler]` above it, which would have taken it away.
fn misplaced(name: &str, item: TokenStream) -> TokenStream {
    let mut tokens = TokenStream::from(steps::misplaced(name).into_compile_error());
    tokens.extend(item);
    tokens
}

/// All problems as one error, each reported at its own place.
fn all(problems: impl IntoIterator<Item = Error>) -> syn::Result<()> {
    let combined = problems.into_iter().reduce(|mut all, problem| {
        all.combine(problem);
        all
    });
    combined.map_or(Ok(()), Err)
}
