//! Where handlers run: the only difference between the two pumps.

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

/// What a pump runs its messages with.
#[derive(Clone)]
pub enum Work {
    /// The proactor: async handlers, polled by the performer itself.
    Async(Arc<dyn Handler>),
    /// The reactor: blocking handlers on threads of their own.
    Blocking(Arc<dyn BlockingHandler>),
    /// The reactor with async steps around its handlers: the steps are polled by the performer, so that a pause in one
    /// of them holds no thread.
    Surrounded(Arc<dyn Surround>, Arc<dyn BlockingHandler>),
    /// Blocking handlers run where they stand, for simulations that allow only one thread.
    Inline(Arc<dyn BlockingHandler>),
}

/// One performer's way to run handlers.
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

    /// Begins one run; one that waits is to be polled by [`poll_run`]. Dropping its future abandons it; `slot` is what
    /// people then see. A panic is a failure, also one that comes before there is a future.
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

    /// How many more runs may be started now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Threads(threads) => threads.room(),
            Self::Surrounded(_, threads) => threads.room(),
            Self::Async(_) | Self::Inline(_) => usize::MAX,
        }
    }

    /// Completes when there may be more room than before.
    pub(super) async fn more_room(&self) {
        match self {
            Self::Threads(threads) => threads.more_room().await,
            Self::Surrounded(_, threads) => threads.more_room().await,
            Self::Async(_) | Self::Inline(_) => std::future::pending().await,
        }
    }
}

/// The blocking run that async steps surround.
pub struct BlockingRun {
    threads: Arc<Threads>,
    message: Message,
    context: Context,
    slot: Slot,
    at_work: Arc<()>,
}

impl BlockingRun {
    /// Runs the handler on a thread, once more at each call. A panic is a failure. Dropping the future abandons the run.
    pub fn run(&self) -> BoxFuture<'static, Verdict> {
        self.threads.run(self.message.clone(), self.context.clone(), self.slot.clone(), self.at_work.clone())
    }

    /// Whether a run has been started and has not come back, be it abandoned or not.
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

/// The verdict of a run that may have panicked.
pub fn or_panic(run: std::thread::Result<Verdict>) -> Verdict {
    run.unwrap_or_else(|panic| Verdict::fail(format!("the handler panicked: {}", panic_text(&*panic))))
}

/// Drops the run of a handler that was given up. Returns the text of a panic in its destructor: it concerns this run alone.
pub fn drop_caught(run: BoxFuture<'static, Verdict>) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| drop(run))).err().map(|panic| panic_text(&*panic).to_owned())
}
