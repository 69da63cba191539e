//! The context of one run.

use crate::{
    bus::Bus,
    extract::States,
    message::{Command, Event},
    sending::Sending,
    trace::TraceContext,
};
use dwell_core::{Address, Clock, Headers, LeaseId, Message, MessageId, Timestamp};
use dwell_engine::Context;
use std::{fmt, sync::Arc};

/// The context of one run of a handler: properties of the message and its delivery, and methods
/// that send further messages. It is cheap to clone.
///
/// ```
/// use dwell::{prelude::*, testing};
///
/// #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
/// #[message(name = "payments.charge")]
/// struct Charge { order: u64 }
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// async fn pay(placed: OrderPlaced, cx: Cx) -> Result<(), Failure> {
///     println!("run {} of {} for {}/{}", cx.attempt(), cx.id(), cx.topic(), cx.subscription());
///     // The id is derived from the order: if this handler runs twice, one charge is sent.
///     cx.send(Charge { order: placed.order }).id(format!("charge-{}", placed.order)).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let cx = testing::cx();
/// pay(OrderPlaced { order: 42 }, cx.clone()).await.unwrap();
/// assert_eq!(cx.ids(), ["charge-42".into()]);
/// # }
/// ```
#[derive(Clone)]
pub struct Cx(Arc<Inner>);

struct Inner {
    bus: Bus,
    message: Message,
    context: Context,
    /// The span that a tracing system assigned to this run, if any.
    #[cfg(feature = "otel")]
    trace: std::sync::OnceLock<TraceContext>,
}

impl Cx {
    pub(crate) fn new(bus: Bus, message: Message, context: Context) -> Self {
        Self(Arc::new(Inner {
            bus,
            message,
            context,
            #[cfg(feature = "otel")]
            trace: std::sync::OnceLock::new(),
        }))
    }

    /// Returns the id of the message, which is the same for every retry and copy.
    ///
    /// ```
    /// use dwell::{raw::Message, testing::TestCx};
    ///
    /// let cx = TestCx::of(Message::new("order-42", "orders.placed", "{}"));
    /// assert_eq!(cx.id(), &"order-42".into());
    /// ```
    pub fn id(&self) -> &MessageId {
        &self.0.message.id
    }

    /// Returns the business key of the message, if it is text.
    ///
    /// ```
    /// use dwell::{raw::Message, testing::TestCx};
    ///
    /// let message = Message::new("a", "orders.placed", "{}")
    ///     .with(|message| message.key = Some("order-42".into()));
    /// assert_eq!(TestCx::of(message).key(), Some("order-42"));
    /// ```
    pub fn key(&self) -> Option<&str> {
        self.0.message.key.as_deref().and_then(|key| std::str::from_utf8(key).ok())
    }

    /// Returns the headers of the message.
    ///
    /// ```
    /// use dwell::{raw::Message, testing::TestCx};
    ///
    /// let message = Message::new("a", "orders.placed", "{}")
    ///     .with(|message| message.headers.append("tenant", "acme"));
    /// assert_eq!(TestCx::of(message).headers().get_text("tenant"), Some("acme"));
    /// ```
    pub fn headers(&self) -> &Headers {
        &self.0.message.headers
    }

    /// Returns the message as it was received: body, type, content type and counts.
    ///
    /// ```
    /// use dwell::{raw::{ContentType, Message}, testing::TestCx};
    ///
    /// let cx = TestCx::of(Message::new("a", "orders.placed", r#"{"order":42}"#));
    /// assert_eq!(
    ///     (&*cx.message().kind, &cx.message().content_type),
    ///     ("orders.placed", &ContentType::JSON)
    /// );
    /// ```
    pub fn message(&self) -> &Message {
        &self.0.message
    }

    /// Returns the topic that the message was received from.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed", topic = "orders")]
    /// # struct OrderPlaced;
    /// async fn confirm(_: OrderPlaced, cx: Cx) {
    ///     assert_eq!(cx.topic(), "orders");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
    /// # t.publish(OrderPlaced).await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<OrderPlaced>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn topic(&self) -> &str {
        &self.0.context.place.topic
    }

    /// Returns the subscription that the message was received for.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.placed", topic = "orders")]
    /// # struct OrderPlaced;
    /// async fn confirm(_: OrderPlaced, cx: Cx) {
    ///     assert_eq!(cx.subscription(), "mail");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().subscribe("mail", confirm)).await?;
    /// # t.publish(OrderPlaced).await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<OrderPlaced>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn subscription(&self) -> &str {
        &self.0.context.place.subscription
    }

    /// Returns the number of this run of the message, from 1. Deferrals and failures both count.
    ///
    /// ```
    /// use dwell::{raw::{Attempts, Message}, testing::TestCx};
    ///
    /// // It was deferred once and failed once before this run.
    /// let message = Message::new("a", "orders.placed", "{}")
    ///     .with(|message| message.attempts = Attempts { handled: 2, failed: 1 });
    /// let cx = TestCx::of(message);
    /// assert_eq!((cx.attempt(), cx.failures()), (3, 1));
    /// ```
    pub fn attempt(&self) -> u32 {
        self.0.message.attempts.handled.saturating_add(1)
    }

    /// Returns the number of earlier runs that failed.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge;
    /// async fn charge(_: Charge, cx: Cx) -> Result<(), Failure> {
    ///     match (cx.attempt(), cx.failures()) {
    ///         (1, 0) => Err(Failure::defer()),             // not a failure
    ///         (2, 0) => Err("the gateway is down".into()), // a failure
    ///         (3, 1) => Ok(()),
    ///         other => panic!("{other:?}"),
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(charge)).await?;
    /// # t.send(Charge).await?;
    /// # t.advance(Duration::from_secs(60)).await;
    /// # assert_eq!(t.handled::<Charge>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn failures(&self) -> u32 {
        self.0.message.attempts.failed
    }

    /// Returns the number of deliveries since the message arrived at its current address, if the
    /// broker counts them. More than one without an outcome means that a worker crashed or lost its
    /// lease.
    ///
    /// ```
    /// use dwell::{prelude::*, testing};
    ///
    /// fn warn_of_crashes(cx: &Cx) -> bool {
    ///     cx.deliveries().is_some_and(|deliveries| deliveries > 1)
    /// }
    ///
    /// assert!(!warn_of_crashes(&testing::cx()));
    /// ```
    pub fn deliveries(&self) -> Option<u32> {
        self.0.context.deliveries
    }

    /// Returns the time when the message became due, if the transport provides it.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "remind")]
    /// # struct Remind;
    /// async fn remind(_: Remind, cx: Cx) {
    ///     let late = cx.due().map(|due| cx.now().since(due));
    ///     assert_eq!(late, Some(Duration::ZERO), "the virtual clock shows the due time");
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t = dwell::testing::start(Bus::builder().handle(remind)).await?;
    /// t.send(Remind).after(Duration::from_secs(60)).await?;
    /// # t.advance(Duration::from_secs(60)).await;
    /// # assert_eq!(t.handled::<Remind>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn due(&self) -> Option<Timestamp> {
        self.0.context.due
    }

    /// Returns the current time of the clock of the bus, which a test can control.
    ///
    /// ```
    /// # use dwell::{Timestamp, prelude::*, testing};
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "coupons.redeem")]
    /// # struct Redeem { until: Timestamp }
    /// async fn redeem(coupon: Redeem, cx: Cx) -> Result<(), Failure> {
    ///     if coupon.until < cx.now() {
    ///         return Err(Failure::reject("the coupon has expired"));
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let cx = testing::cx();
    /// assert!(redeem(Redeem { until: Timestamp(0) }, cx.clone()).await.is_err());
    /// assert!(redeem(Redeem { until: cx.now() }, cx.clone()).await.is_ok());
    /// # }
    /// ```
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// Returns the clock of the bus. Wait on it instead of the system clock, so that a test can
    /// control the time.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize)]
    /// # #[message(name = "tea.make")]
    /// # struct MakeTea;
    /// async fn make_tea(_: MakeTea, cx: Cx) {
    ///     cx.clock().sleep(Duration::from_secs(20)).await;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// let t = dwell::testing::start(Bus::builder().handle(make_tea)).await?;
    /// t.send(MakeTea).await?;
    /// t.advance(Duration::from_secs(20)).await; // returns at once
    /// assert_eq!(t.handled::<MakeTea>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.bus.seams().clock
    }

    /// Returns the bus that runs this handler, for example to cancel messages or to query them.
    ///
    /// ```
    /// # use dwell::prelude::*;
    /// # #[derive(Event, Serialize, Deserialize)]
    /// # #[message(name = "orders.paid")]
    /// # struct OrderPaid { order: u64 }
    /// async fn stop_reminding(paid: OrderPaid, cx: Cx) -> Result<(), Failure> {
    ///     // The result is `NotFound` if no reminder is pending.
    ///     cx.bus().cancel(format!("reminder-{}", paid.order)).await?;
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let t =
    /// #     dwell::testing::start(Bus::builder().subscribe("reminder", stop_reminding)).await?;
    /// # t.publish(OrderPaid { order: 42 }).await?;
    /// # t.run_until_idle().await;
    /// # assert_eq!(t.handled::<OrderPaid>(), 1);
    /// # Ok(()) }
    /// ```
    pub fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// Sends a command in the trace of this message.
    ///
    /// ```
    /// # use dwell::{prelude::*, testing};
    /// # use std::time::Duration;
    /// # #[derive(Command, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "payments.charge")]
    /// # struct Charge { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let cx = testing::cx();
    /// cx.send(Charge { order: 42 }).id("charge-42").await?;
    /// # assert_eq!(cx.sent(), [(Charge { order: 42 }, Duration::ZERO)]);
    /// # Ok(()) }
    /// ```
    pub fn send<M: Command>(&self, command: M) -> Sending {
        self.0.bus.send(command).within(self)
    }

    /// Publishes an event in the trace of this message.
    ///
    /// ```
    /// # use dwell::{prelude::*, testing};
    /// # use std::time::Duration;
    /// # #[derive(Event, Serialize, Deserialize, Debug, PartialEq)]
    /// # #[message(name = "orders.unpaid")]
    /// # struct OrderUnpaid { order: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let cx = testing::cx();
    /// cx.publish(OrderUnpaid { order: 42 }).after(Duration::from_secs(900)).await?;
    /// # assert_eq!(cx.sent(), [(OrderUnpaid { order: 42 }, Duration::from_secs(900))]);
    /// # Ok(()) }
    /// ```
    pub fn publish<M: Event>(&self, event: M) -> Sending {
        self.0.bus.publish(event).within(self)
    }

    /// Sends a raw message to an address, in the trace of this message.
    ///
    /// ```
    /// # use dwell::{prelude::*, raw::Address, testing};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dwell::Error> {
    /// # let cx = testing::cx();
    /// cx.post(Address::topic("audit"), cx.message().clone()).await?; // a copy of this message
    /// # assert_eq!(cx.ids(), [cx.id().clone()]);
    /// # Ok(()) }
    /// ```
    pub fn post(&self, to: Address, message: Message) -> Sending {
        self.0.bus.post(to, message).within(self)
    }

    /// Returns the trace context of this run.
    ///
    /// ```
    /// use dwell::{raw::Message, testing::TestCx};
    ///
    /// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let message = Message::new("a", "orders.placed", "{}")
    ///     .with(|message| message.headers.append("traceparent", header));
    /// let trace = TestCx::of(message).trace();
    /// assert_eq!(trace.trace_id, 0x4bf92f3577b34da6a3ce929d0e0e4736, "the trace of the sender");
    /// assert_ne!(trace.span_id, 0x00f067aa0ba902b7, "a new span");
    /// ```
    pub fn trace(&self) -> TraceContext {
        #[cfg(feature = "otel")]
        if let Some(trace) = self.0.trace.get() {
            return *trace;
        }
        TraceContext::of_run(&self.0.message, &self.0.context)
    }

    #[cfg(feature = "otel")]
    pub(crate) fn set_trace(&self, trace: TraceContext) {
        self.0.trace.get_or_init(|| trace);
    }

    pub(crate) fn lease(&self) -> LeaseId {
        self.0.context.lease
    }

    pub(crate) fn states(&self) -> &States {
        self.0.bus.states()
    }
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("id", &self.id().0)
            .field("kind", &self.0.message.kind)
            .field("topic", &self.topic())
            .field("subscription", &self.subscription())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
