//! What runs for each message: an async handler, or a blocking one.

use crate::{pump::BlockingRun, rules::Verdict};
use dwell_core::{BoxFuture, LeaseId, Message, Text, Timestamp};
use std::{
    fmt,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

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
    /// Begins one run, and goes as far as it can without waiting.
    fn begin(&self, message: Message, context: Context, task: &mut TaskContext<'_>) -> Begun;
}

/// How far a run came without waiting. Most are done, and never need to be kept anywhere.
pub enum Begun {
    /// It is over.
    Done(Verdict),
    /// It waits for something, and will wake the task that it was begun in.
    Waits(BoxFuture<'static, Verdict>),
}

impl Begun {
    /// Polls a run for the first time.
    pub fn of(mut run: BoxFuture<'static, Verdict>, task: &mut TaskContext<'_>) -> Self {
        match run.as_mut().poll(task) {
            Poll::Ready(verdict) => Self::Done(verdict),
            Poll::Pending => Self::Waits(run),
        }
    }
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(verdict) => f.debug_tuple("Done").field(verdict).finish(),
            Self::Waits(_) => f.write_str("Waits"),
        }
    }
}

impl<F, R> Handler for F
where
    F: Fn(Message, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Verdict> + Send + 'static,
{
    fn begin(&self, message: Message, context: Context, task: &mut TaskContext<'_>) -> Begun {
        Begun::of(Box::pin(self(message, context)), task)
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
