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

/// What a handler may know about its run beside the message, and the way to send more. Cheap to clone.
///
/// ```
/// use dwell::prelude::*;
///
/// #[derive(Command, Serialize, Deserialize)]
/// #[message(name = "payments.charge")]
/// struct Charge { order: u64 }
///
/// #[derive(Event, Serialize, Deserialize)]
/// #[message(name = "orders.placed")]
/// struct OrderPlaced { order: u64 }
///
/// async fn pay(placed: OrderPlaced, cx: Cx) -> Result<(), Failure> {
///     // An id of our own: if this handler runs twice, there is still one charge.
///     cx.send(Charge { order: placed.order }).id(format!("charge-{}", placed.order)).await?;
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Cx(Arc<Inner>);

struct Inner {
    bus: Bus,
    message: Message,
    context: Context,
    /// Where a tracing system has put this run, if one has.
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

    /// The message's id: the same over every retry and copy.
    pub fn id(&self) -> &MessageId {
        &self.0.message.id
    }

    /// Its business key, if it is text.
    pub fn key(&self) -> Option<&str> {
        self.0.message.key.as_deref().and_then(|key| std::str::from_utf8(key).ok())
    }

    /// Its headers.
    pub fn headers(&self) -> &Headers {
        &self.0.message.headers
    }

    /// The message as it came: body, type, content type, counts.
    pub fn message(&self) -> &Message {
        &self.0.message
    }

    /// The topic that it was received from.
    pub fn topic(&self) -> &str {
        &self.0.context.place.topic
    }

    /// The subscription that it was received for.
    pub fn subscription(&self) -> &str {
        &self.0.context.place.subscription
    }

    /// Which run of this message this is, from 1: deferrals and failures both count.
    pub fn attempt(&self) -> u32 {
        self.0.message.attempts.handled.saturating_add(1)
    }

    /// How often it has failed before.
    pub fn failures(&self) -> u32 {
        self.0.message.attempts.failed
    }

    /// How often it was handed out since it was put here, where the broker can tell: more than once without an outcome
    /// means that a worker crashed, or lost it.
    pub fn deliveries(&self) -> Option<u32> {
        self.0.context.deliveries
    }

    /// When it became due, where the transport knows.
    pub fn due(&self) -> Option<Timestamp> {
        self.0.context.due
    }

    /// The time, which a test may have under control.
    pub fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// The clock, to wait on: in a test, its time is under control.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.bus.seams().clock
    }

    /// The bus that this runs on, to cancel and to look around.
    pub fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// Sends a command, within this message's trace.
    pub fn send<M: Command>(&self, command: M) -> Sending {
        self.0.bus.send(command).within(self)
    }

    /// Publishes an event, within this message's trace.
    pub fn publish<M: Event>(&self, event: M) -> Sending {
        self.0.bus.publish(event).within(self)
    }

    /// Sends a raw message to an address, within this message's trace.
    pub fn post(&self, to: Address, message: Message) -> Sending {
        self.0.bus.post(to, message).within(self)
    }

    /// The trace that this run belongs to.
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
