//! Runs a pipeline: each step runs the next one, and the last one runs the handler.

use super::{Step, steps::Layer};
use crate::{Failure, cx::Cx, handler::Target};
use bytes::Bytes;
use dwell_core::{BoxFuture, Text};
use dwell_engine::{Begun, BlockingRun, Verdict, or_panic};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    task::Context,
};

/// The layers and the handler of a pipeline.
pub(crate) struct Chain {
    name: Text,
    layers: Vec<Box<dyn Layer>>,
    target: Target,
    /// Set if no layer acts before the handler has returned `Pending` or has failed.
    is_lazy: bool,
}

impl Chain {
    pub(super) fn new(name: Text, target: Target, steps: &[Step]) -> Self {
        let layers: Vec<_> = steps.iter().filter_map(Step::layer).collect();
        let is_lazy = layers.iter().all(|layer| layer.is_lazy());
        Self { name, layers, target, is_lazy }
    }

    /// Starts a run for one message. Most handlers complete at the first poll and succeed, so that
    /// no step has to act. Otherwise the steps are added around the run that has started.
    pub(crate) fn begin(self: &Arc<Self>, cx: &Cx, task: &mut Context<'_>) -> Begun {
        let function = match &self.target {
            Target::Async(function) if self.is_lazy => function,
            _ => return Begun::of(self.run(cx, None), task),
        };
        let run = match Begun::of(function(cx), task) {
            Begun::Done(failed @ Verdict::Fail(_)) if !self.layers.is_empty() => dwell_core::ready(failed),
            Begun::Waits(run) if !self.layers.is_empty() => run,
            begun => return begun,
        };
        let started = Some(Arc::new(Mutex::new(Some(run))));
        Begun::of(Inner { chain: self.clone(), at: 0, thread: None, started }.run(cx), task)
    }

    /// Runs the pipeline for one message. A blocking handler runs on `thread`, or on the current
    /// thread if that is `None`.
    pub(crate) fn run(self: &Arc<Self>, cx: &Cx, thread: Option<BlockingRun>) -> BoxFuture<'static, Verdict> {
        Inner { chain: self.clone(), at: 0, thread: thread.map(Arc::new), started: None }.run(cx)
    }

    /// Runs the blocking handler without its steps.
    pub(crate) fn run_blocking(&self, cx: &Cx) -> Verdict {
        match &self.target {
            Target::Blocking(function) => function(cx),
            Target::Async(_) => {
                Verdict::Misconfigured(format!("`{}` is not a blocking handler", self.name).into())
            }
        }
    }

    pub(crate) fn is_blocking(&self) -> bool {
        matches!(self.target, Target::Blocking(_))
    }
}

/// The inner part of a pipeline, as seen from one of its steps.
#[derive(Clone)]
pub(crate) struct Inner {
    chain: Arc<Chain>,
    at: usize,
    thread: Option<Arc<BlockingRun>>,
    /// The first run, if it has already started.
    started: Option<Arc<Mutex<Option<BoxFuture<'static, Verdict>>>>>,
}

impl Inner {
    /// Returns whether the handler continues to run after its future is dropped.
    pub(crate) fn is_on_a_thread(&self) -> bool {
        self.thread.is_some() && self.chain.is_blocking()
    }

    /// Returns whether a thread still runs the handler after its run was abandoned.
    pub(crate) fn is_at_work(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.is_at_work())
    }

    /// Runs the inner part. Each call is another run.
    pub(crate) fn run(&self, cx: &Cx) -> BoxFuture<'static, Verdict> {
        if let Some(layer) = self.chain.layers.get(self.at) {
            return layer.run(cx, Self { at: self.at + 1, ..self.clone() });
        }
        let started = self.started.as_ref();
        if let Some(run) = started.and_then(|run| run.lock().unwrap_or_else(PoisonError::into_inner).take()) {
            return run;
        }
        match (&self.chain.target, &self.thread) {
            (Target::Async(function), _) => function(cx),
            (Target::Blocking(_), Some(thread)) => thread.run(),
            (Target::Blocking(function), None) => {
                dwell_core::ready(or_panic(catch_unwind(AssertUnwindSafe(|| function(cx)))))
            }
        }
    }
}

/// The inner part of a pipeline, which a custom step runs: see [`Step::around`].
///
/// ```
/// use dwell::{Next, Step, prelude::*};
///
/// // Skips messages that are older than a minute.
/// let fresh = Step::around("fresh", |cx: Cx, next: Next| async move {
///     let age = cx.message().sent_at.map(|sent| cx.now().since(sent));
///     if age.is_some_and(|age| age.as_secs() > 60) {
///         return Ok(()); // acknowledged without a run
///     }
///     next.run().await
/// });
/// assert_eq!(fresh.name(), "fresh");
/// ```
pub struct Next {
    cx: Cx,
    inner: Inner,
    result: Arc<Mutex<Option<Bytes>>>,
}

impl Next {
    pub(super) fn new(cx: Cx, inner: Inner, result: Arc<Mutex<Option<Bytes>>>) -> Self {
        Self { cx, inner, result }
    }

    /// Runs the inner part. Each call is another run. A panic in it is a failure.
    ///
    /// ```
    /// use dwell::{Next, Step, prelude::*};
    ///
    /// let twice = Step::around("twice", |_: Cx, next: Next| async move {
    ///     match next.run().await {
    ///         Err(_) => next.run().await,
    ///         done => done,
    ///     }
    /// });
    /// # assert_eq!(twice.name(), "twice");
    /// ```
    pub async fn run(&self) -> Result<(), Failure> {
        match self.inner.run(&self.cx).await {
            Verdict::Ack { result } => {
                *self.result.lock().unwrap_or_else(PoisonError::into_inner) = result;
                Ok(())
            }
            verdict => Err(Failure::of(verdict)),
        }
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("cx", &self.cx).finish_non_exhaustive()
    }
}
