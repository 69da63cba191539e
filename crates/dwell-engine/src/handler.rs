//! What runs for each message: an async handler, or a blocking one.

use crate::{pump::BlockingRun, rules::Verdict};
use dwell_core::{BoxFuture, LeaseId, Message, Text, Timestamp};
use std::sync::Arc;

/// Where runs take place: the same for all that one worker does.
#[derive(Clone, Debug)]
pub struct Place {
    /// The topic that messages are received from.
    pub topic: Text,
    /// The subscription that they are received for.
    pub subscription: Text,
    /// Who runs them: a new name at each start.
    pub worker: Text,
}

/// What a handler may know about a delivery beside its message.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where it is run. Shared, because every message pays for it.
    pub place: Arc<Place>,
    /// The attempt: its fence is the token that a later attempt makes stale.
    pub lease: LeaseId,
    /// How often it was handed out since it was put here, where the broker can tell.
    pub deliveries: Option<u32>,
    /// When it became due, where the transport knows.
    pub due: Option<Timestamp>,
}

/// Handles messages without blocking. A panic counts as a failure. The future is dropped when it exceeds its timeout.
///
/// ```
/// use dwell_core::Message;
/// use dwell_engine::{Context, Handler, Verdict};
///
/// fn takes(_: impl Handler) {}
/// takes(|message: Message, _: Context| async move {
///     if message.body.is_empty() { Verdict::Invalid("empty".into()) } else { Verdict::ACK }
/// });
/// ```
pub trait Handler: Send + Sync + 'static {
    /// One run.
    fn handle(&self, message: Message, context: Context) -> BoxFuture<'static, Verdict>;
}

impl<F, R> Handler for F
where
    F: Fn(Message, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Verdict> + Send + 'static,
{
    fn handle(&self, message: Message, context: Context) -> BoxFuture<'static, Verdict> {
        Box::pin(self(message, context))
    }
}

/// Handles messages on threads of their own, and may block. One that exceeds its timeout is abandoned: its thread is
/// replaced, its late outcome dropped.
pub trait BlockingHandler: Send + Sync + 'static {
    /// One run.
    fn handle(&self, message: Message, context: Context) -> Verdict;
}

impl<F> BlockingHandler for F
where
    F: Fn(Message, Context) -> Verdict + Send + Sync + 'static,
{
    fn handle(&self, message: Message, context: Context) -> Verdict {
        self(message, context)
    }
}

/// Async steps around a blocking handler.
pub trait Surround: Send + Sync + 'static {
    /// One message: runs `inner` never, once or several times, and says what came of it.
    fn surround(&self, message: Message, context: Context, inner: BlockingRun)
    -> BoxFuture<'static, Verdict>;
}
