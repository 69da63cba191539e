//! Execution of handlers: the only difference between async and blocking work.

use super::{
    slots::{Abandoned, Slot},
    threads::Threads,
};
use crate::{
    Context,
    handler::{Begun, BlockingHandler, Handler, Surround},
    inside::Runs,
    rules::Verdict,
    spawn::panic_text,
};
use dwell_core::{BoxFuture, Clock, Message};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

/// The handlers of a pump.
#[derive(Clone)]
pub enum Work {
    /// Async handlers, polled by the performer.
    Async(Arc<dyn Handler>),
    /// Blocking handlers on separate threads.
    Blocking(Arc<dyn BlockingHandler>),
    /// Blocking handlers on separate threads, with async steps around them. The performer polls the
    /// steps, so that a pause in one of them occupies no thread.
    Surrounded(Arc<dyn Surround>, Arc<dyn BlockingHandler>),
    /// Blocking handlers that run inline, for simulations with a single thread.
    Inline(Arc<dyn BlockingHandler>),
}

/// Runs the handlers of one performer.
pub(super) enum Executor {
    Async(Arc<dyn Handler>),
    Threads(Threads),
    Surrounded(Arc<dyn Surround>, Arc<Threads>),
    Inline(Arc<dyn BlockingHandler>),
}

impl Executor {
    pub(super) fn new(
        work: &Work,
        clock: Arc<dyn Clock>,
        concurrency: usize,
        name: &str,
        abandoned: Arc<Abandoned>,
        runs: &Runs,
    ) -> Self {
        let threads = |handler: &Arc<_>| {
            Threads::new(Arc::clone(handler), clock, concurrency, name, abandoned, runs.clone())
        };
        match work {
            Work::Async(handler) => Self::Async(handler.clone()),
            Work::Blocking(handler) => Self::Threads(threads(handler)),
            Work::Surrounded(steps, handler) => Self::Surrounded(steps.clone(), Arc::new(threads(handler))),
            Work::Inline(handler) => Self::Inline(handler.clone()),
        }
    }

    /// Starts a run. A run that waits is polled by [`poll_run`]. Dropping its future abandons it,
    /// and the monitor then shows `slot`. A panic is a failure, even before the future exists.
    pub(super) fn begin(
        &self,
        message: Message,
        context: Context,
        slot: impl FnOnce() -> Slot,
        task: &mut TaskContext<'_>,
    ) -> Begun {
        let begin = || match self {
            Self::Async(handler) => handler.begin(message, context, task),
            Self::Surrounded(steps, threads) => {
                let inner = BlockingRun {
                    threads: threads.clone(),
                    message: message.clone(),
                    context: context.clone(),
                    slot: slot(),
                    at_work: Arc::default(),
                };
                Begun::of(steps.surround(message, context, inner), task)
            }
            Self::Threads(threads) => Begun::of(threads.run(message, context, slot(), Arc::default()), task),
            Self::Inline(handler) => Begun::Done(handler.handle(message, context)),
        };
        catch_unwind(AssertUnwindSafe(begin)).unwrap_or_else(|panic| Begun::Done(or_panic(Err(panic))))
    }

    /// Returns how many more runs may start now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Threads(threads) => threads.room(),
            Self::Surrounded(_, threads) => threads.room(),
            Self::Async(_) | Self::Inline(_) => usize::MAX,
        }
    }

    /// Completes when more runs may start than before.
    pub(super) async fn more_room(&self) {
        match self {
            Self::Threads(threads) => threads.more_room().await,
            Self::Surrounded(_, threads) => threads.more_room().await,
            Self::Async(_) | Self::Inline(_) => std::future::pending().await,
        }
    }
}

/// The blocking run inside async steps.
pub struct BlockingRun {
    threads: Arc<Threads>,
    message: Message,
    context: Context,
    slot: Slot,
    at_work: Arc<()>,
}

impl BlockingRun {
    /// Runs the handler on a thread, again with each call. A panic is a failure. Dropping the
    /// future abandons the run.
    pub fn run(&self) -> BoxFuture<'static, Verdict> {
        self.threads.run(self.message.clone(), self.context.clone(), self.slot.clone(), self.at_work.clone())
    }

    /// Whether a run has started and has not returned, even if it was abandoned.
    pub fn is_at_work(&self) -> bool {
        Arc::strong_count(&self.at_work) > 1
    }
}

impl fmt::Debug for BlockingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingRun").field("message", &self.message.id).finish_non_exhaustive()
    }
}

/// Polls a run. A panic is a failure.
pub(super) fn poll_run(run: &mut BoxFuture<'static, Verdict>, cx: &mut TaskContext<'_>) -> Poll<Verdict> {
    catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx)))
        .unwrap_or_else(|panic| Poll::Ready(or_panic(Err(panic))))
}

pub(super) fn run_blocking(handler: &dyn BlockingHandler, message: Message, context: Context) -> Verdict {
    or_panic(catch_unwind(AssertUnwindSafe(|| handler.handle(message, context))))
}

/// Returns the verdict of a run that may have panicked.
pub fn or_panic(run: std::thread::Result<Verdict>) -> Verdict {
    run.unwrap_or_else(|panic| Verdict::fail(format!("the handler panicked: {}", panic_text(&*panic))))
}

/// Drops the run of a handler that was abandoned. Returns the message of a panic in its destructor,
/// so that it does not affect other runs.
pub fn drop_caught(run: BoxFuture<'static, Verdict>) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| drop(run))).err().map(|panic| panic_text(&*panic).to_owned())
}
