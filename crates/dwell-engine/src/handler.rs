//! Handlers of messages, async and blocking.

use crate::{pump::BlockingRun, rules::Verdict};
use dwell_core::{BoxFuture, LeaseId, Message, Text, Timestamp};
use std::{
    fmt,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

/// Topic, subscription and worker of a run. The same for all runs of one worker.
#[derive(Clone, Debug)]
pub struct Place {
    /// Topic of the messages.
    pub topic: Text,
    /// Subscription of the messages.
    pub subscription: Text,
    /// Name of the worker. It is new at each start.
    pub worker: Text,
}

/// What a handler can read about a delivery, in addition to its message.
#[derive(Clone, Debug)]
pub struct Context {
    /// Topic, subscription and worker. Shared, because every message needs it.
    pub place: Arc<Place>,
    /// The attempt. A later attempt has another fence, which makes this one stale.
    pub lease: LeaseId,
    /// Number of deliveries since the message was stored here, if the broker counts them.
    pub deliveries: Option<u32>,
    /// When the message became due, if the transport knows.
    pub due: Option<Timestamp>,
}

/// Handles messages without blocking. A panic counts as a failure. The future is dropped when it
/// exceeds its timeout.
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
    /// Starts a run, and proceeds as far as possible without waiting.
    fn begin(&self, message: Message, context: Context, task: &mut TaskContext<'_>) -> Begun;
}

/// State of a run after [`Handler::begin`]. Most runs are done, and need not be stored.
pub enum Begun {
    /// The run has ended.
    Done(Verdict),
    /// The run is waiting, and will wake the task in which it started.
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

/// Handles messages on separate threads, and may block. A run that exceeds its timeout is
/// abandoned: its thread is replaced, and its late outcome is dropped.
pub trait BlockingHandler: Send + Sync + 'static {
    /// Runs the handler.
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
    /// Processes one message: runs `inner` never, once or several times, and returns the verdict.
    fn surround(&self, message: Message, context: Context, inner: BlockingRun)
    -> BoxFuture<'static, Verdict>;
}
