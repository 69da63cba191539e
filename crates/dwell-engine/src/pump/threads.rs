//! Threads for blocking handlers.
//!
//! Each performer has as many threads as its concurrency, started when first needed. A run that is abandoned (its
//! future was dropped: it overran its timeout) leaves its thread stuck; a new one takes its place, as long as no more
//! than another concurrency's worth of threads is stuck. Beyond that the performer waits for one to come back: threads
//! without end would only move the failure elsewhere.

use super::{
    executor::run_blocking,
    slots::{Abandoned, Slot},
};
use crate::{BlockingHandler, Context, Verdict, inside::Runs};
use dwell_core::{BoxFuture, Busy, Clock, Message};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};
use tokio::sync::{Notify, oneshot};
use tracing::Span;

pub(super) struct Threads {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    concurrency: usize,
    name: String,
}

struct Shared {
    handler: Arc<dyn BlockingHandler>,
    state: Mutex<State>,
    work: Condvar,
    room: Notify,
    abandoned: Arc<Abandoned>,
    concurrency: usize,
    runs: Runs,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Runs whose outcome is still awaited, in the queue or on a thread. A virtual clock stands still for them; one that
    /// was abandoned no longer holds up time.
    open: BTreeMap<u64, Busy>,
    /// Threads that take part, stuck ones not included.
    threads: usize,
    /// Of those, threads that wait for work.
    idle: usize,
    /// Threads whose run was abandoned and has not come back.
    stuck: usize,
    closed: bool,
}

impl State {
    /// How many threads may take part: no more than another concurrency's worth may be stuck beside them.
    fn allowed(&self, concurrency: usize) -> usize {
        concurrency.min(concurrency.saturating_mul(2).saturating_sub(self.stuck))
    }
}

struct Job {
    id: u64,
    message: Message,
    context: Context,
    outcome: oneshot::Sender<Verdict>,
    /// Whoever asked for the run can tell that it has not come back.
    at_work: Arc<()>,
    /// Where it was asked for: what the handler says on its thread belongs there.
    span: Span,
}

impl Threads {
    pub(super) fn new(
        handler: Arc<dyn BlockingHandler>,
        clock: Arc<dyn Clock>,
        concurrency: usize,
        name: &str,
        abandoned: Arc<Abandoned>,
        runs: Runs,
    ) -> Self {
        let shared = Shared {
            handler,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Notify::new(),
            abandoned,
            concurrency,
            runs,
        };
        Self { shared: Arc::new(shared), clock, concurrency, name: name.to_owned() }
    }

    /// Runs the handler. A clone of `at_work` is held until it has come back, abandoned or not.
    pub(super) fn run(
        &self,
        message: Message,
        context: Context,
        slot: Slot,
        at_work: Arc<()>,
    ) -> BoxFuture<'static, Verdict> {
        let (outcome, result) = oneshot::channel();
        let busy = self.clock.busy();
        let id = {
            let mut state = self.shared.lock();
            let id = self.shared.abandoned.next();
            state.open.insert(id, busy);
            let span = Span::current();
            state.queue.push_back(Job { id, message, context, outcome, at_work, span });
            if state.idle < state.queue.len() && state.threads < state.allowed(self.concurrency) {
                self.start_thread(&mut state);
            }
            id
        };
        self.shared.work.notify_one();
        let abandon = Abandon { shared: self.shared.clone(), id, slot: Some(slot) };
        Box::pin(async move {
            let verdict = result.await;
            drop(abandon);
            verdict.unwrap_or_else(|_| Verdict::fail("the handler's thread is gone"))
        })
    }

    /// How many more runs find a thread.
    pub(super) fn room(&self) -> usize {
        let state = self.shared.lock();
        state.allowed(self.concurrency).saturating_sub(state.open.len())
    }

    pub(super) async fn more_room(&self) {
        self.shared.room.notified().await;
    }

    fn start_thread(&self, state: &mut State) {
        let shared = self.shared.clone();
        let started = thread::Builder::new().name(self.name.clone()).spawn(move || shared.work());
        match started {
            Ok(_) => state.threads += 1,
            Err(error) => tracing::error!(%error, "could not start a thread for a blocking handler"),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(job) = state.queue.pop_front() else {
                if state.closed {
                    return;
                }
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let inside = self.runs.enter();
            let verdict = job.span.in_scope(|| run_blocking(&*self.handler, job.message, job.context));
            drop(inside);
            // They must not outlive the run: whoever gets the outcome may look at once.
            drop((job.span, job.at_work));
            state = self.lock();
            if let Some(busy) = state.open.remove(&job.id) {
                drop(state);
                // Nobody listens any more if the performer is gone: that is fine.
                let _ = job.outcome.send(verdict);
                drop(busy);
                state = self.lock();
                continue;
            }
            // Abandoned: another thread has taken this one's place, unless too many were stuck.
            state.stuck -= 1;
            self.abandoned.lock().remove(&job.id);
            self.room.notify_one();
            if state.closed || state.threads >= state.allowed(self.concurrency) || state.queue.is_empty() {
                return;
            }
            state.threads += 1;
        }
    }
}

/// A run that is dropped before its outcome has come: taken back if it never started, else its thread is stuck.
struct Abandon {
    shared: Arc<Shared>,
    id: u64,
    slot: Option<Slot>,
}

impl Drop for Abandon {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(busy) = state.open.remove(&self.id) else { return };
        let queued = state.queue.iter().position(|job| job.id == self.id);
        let job = queued.and_then(|at| state.queue.remove(at));
        if job.is_none() {
            state.stuck += 1;
            state.threads -= 1;
            // Under the same lock that the thread takes before it looks for it here.
            let slot = self.slot.take();
            self.shared.abandoned.lock().extend(slot.map(|slot| (self.id, slot)));
        }
        drop(state);
        drop((job, busy));
        self.shared.room.notify_one();
    }
}
