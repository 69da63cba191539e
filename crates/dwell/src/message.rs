//! Message types: commands and events.

use crate::codec::Codec;
use serde::{Serialize, de::DeserializeOwned};

/// A message type: its wire name and its topic. Derive it with `#[derive(Command)]` or
/// `#[derive(Event)]`.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// assert_eq!(OrderPlaced::NAME, "orders.placed");
/// assert_eq!(OrderPlaced::TOPIC, "orders.placed");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message",
    note = "a message is a struct or an enum with `#[derive(Command)]` or `#[derive(Event)]`, and with serde's `Serialize` and `Deserialize`"
)]
pub trait Message: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The type name on the wire. It stays the same when the Rust type is moved or renamed.
    const NAME: &'static str;
    /// The topic of the message, unless the configuration sets another.
    const TOPIC: &'static str = Self::NAME;
    /// The codec of the message body.
    type Codec: Codec;
}

/// A message that requests an action. It has exactly one handler, and is sent with
/// [`Bus::send`](crate::Bus::send).
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "payments.charge", topic = "payments")]
/// struct Charge { order: u64 }
///
/// async fn charge(command: Charge) {}
///
/// let wiring = Bus::builder().handle(charge);
/// assert_eq!((Charge::NAME, Charge::TOPIC), ("payments.charge", "payments"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a command",
    label = "only a command can be sent; it has exactly one handler",
    note = "an event is published with `publish` and handled by `.subscribe(name, handler)`; a command has `#[derive(Command)]`"
)]
pub trait Command: Message {}

/// A message that reports that something happened. Any number of subscriptions can receive it. It
/// is published with [`Bus::publish`](crate::Bus::publish).
///
/// ```
/// use dwell::prelude::*;
///
/// /// An enum is also a message: all variants have the same wire name.
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.changed")]
/// enum OrderChanged {
///     Paid { order: u64 },
///     Shipped { order: u64, parcel: String },
/// }
///
/// async fn log(changed: OrderChanged) {}
///
/// let wiring = Bus::builder().subscribe("log", log);
/// assert_eq!(OrderChanged::NAME, "orders.changed");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "only an event can be published; each of its subscriptions receives it",
    note = "a command is sent with `send` and handled by `.handle(handler)`; an event has `#[derive(Event)]`"
)]
pub trait Event: Message {}
