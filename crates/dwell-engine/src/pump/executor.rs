//! Where handlers run: the only difference between the two pumps.

use super::{
    slots::{Abandoned, Slot},
    threads::Threads,
};
use crate::{Context, handler::BlockingHandler, handler::Handler, rules::Verdict, spawn::panic_text};
use dwell_core::{BoxFuture, Clock, Message};
use futures_util::FutureExt;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// What a pump runs its messages with.
#[derive(Clone)]
pub enum Work {
    /// The proactor: async handlers, polled by the performer itself.
    Async(Arc<dyn Handler>),
    /// The reactor: blocking handlers on threads of their own.
    Blocking(Arc<dyn BlockingHandler>),
    /// Blocking handlers run where they stand, for simulations that allow only one thread.
    Inline(Arc<dyn BlockingHandler>),
}

/// One performer's way to run handlers.
pub(super) enum Executor {
    Async(Arc<dyn Handler>),
    Threads(Threads),
    Inline(Arc<dyn BlockingHandler>),
}

impl Executor {
    pub(super) fn new(
        work: &Work,
        clock: Arc<dyn Clock>,
        concurrency: usize,
        name: &str,
        abandoned: Arc<Abandoned>,
    ) -> Self {
        match work {
            Work::Async(handler) => Self::Async(handler.clone()),
            Work::Blocking(handler) => {
                Self::Threads(Threads::new(handler.clone(), clock, concurrency, name, abandoned))
            }
            Work::Inline(handler) => Self::Inline(handler.clone()),
        }
    }

    /// Starts one run. A panic is a failure. Dropping the future abandons the run; `slot` is what people then see.
    pub(super) fn run(
        &self,
        message: Message,
        context: Context,
        slot: impl FnOnce() -> Slot,
    ) -> BoxFuture<'static, Verdict> {
        match self {
            Self::Async(handler) => {
                // The handler may panic before it returns a future, too.
                match catch_unwind(AssertUnwindSafe(|| handler.handle(message, context))) {
                    Ok(run) => Box::pin(AssertUnwindSafe(run).catch_unwind().map(or_panic)),
                    Err(panic) => dwell_core::ready(or_panic(Err(panic))),
                }
            }
            Self::Threads(threads) => threads.run(message, context, slot()),
            Self::Inline(handler) => {
                let handler = handler.clone();
                Box::pin(async move { run_blocking(&*handler, message, context) })
            }
        }
    }

    /// How many more runs may be started now.
    pub(super) fn room(&self) -> usize {
        match self {
            Self::Threads(threads) => threads.room(),
            Self::Async(_) | Self::Inline(_) => usize::MAX,
        }
    }

    /// Completes when there may be more room than before.
    pub(super) async fn more_room(&self) {
        match self {
            Self::Threads(threads) => threads.more_room().await,
            Self::Async(_) | Self::Inline(_) => std::future::pending().await,
        }
    }
}

pub(super) fn run_blocking(handler: &dyn BlockingHandler, message: Message, context: Context) -> Verdict {
    or_panic(catch_unwind(AssertUnwindSafe(|| handler.handle(message, context))))
}

fn or_panic(run: std::thread::Result<Verdict>) -> Verdict {
    run.unwrap_or_else(|panic| Verdict::fail(format!("the handler panicked: {}", panic_text(&*panic))))
}
